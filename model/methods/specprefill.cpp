#include <memory>
#include <string>

#include "model/base/error.h"
#include "model/methods/prompt_scores.h"

namespace kvcast {
namespace {

/// The authors' config.py: look_ahead_cnt 8, no pooling, no chunks.
constexpr std::uint64_t default_lookahead = 8;
/// Ours: beyond any context of the catalog. Estimates add up the look-ahead's steps one by one.
constexpr std::uint64_t most_lookahead = std::uint64_t{1} << 20;

const NamePrefixes own_weights{"speculator.", "speculator."};
const NamePrefixes base_weights{"", "speculator."};

void check_speculator(const Architecture& speculator, const Architecture& base) {
  if (may_share_tokens(speculator, base)) return;
  throw Error("method specprefill: speculator " + speculator.name,
              "a vocabulary of " + std::to_string(speculator.vocab_size),
              "that of " + base.name + ", " + std::to_string(base.vocab_size) +
                  ": both read the same token ids");
}

std::uint64_t lookahead_option(const MethodSpec& spec) {
  const std::uint64_t lookahead = whole_option(spec, "lookahead", 1, default_lookahead);
  if (lookahead <= most_lookahead) return lookahead;
  throw Error("method specprefill: option lookahead", "'" + std::to_string(lookahead) + "'",
              "at most " + std::to_string(most_lookahead));
}

std::uint64_t pool_option(const MethodSpec& spec) {
  const std::uint64_t pool = whole_option(spec, "pool", 1, 1);
  if (pool % 2 == 0) {
    throw Error("method specprefill: option pool", "'" + std::to_string(pool) + "'",
                "an odd number: the window is centred on a token");
  }
  return pool == 1 ? 0 : pool;
}

void record_speculator(Recorder& r, const Architecture& whole, const Count& tokens,
                       const Count& past, const AttentionMethod& attend) {
  const Architecture& a = r.sharding() ? r.sharding()->part() : whole;
  Pass pass{symbol::batch, tokens, past};
  pass.keeps_all_rows = true;  // the scores and the base read them
  const Count earlier = past.is_zero() ? Count() : Count(symbol::kv_len) - symbol::prompt_len;
  pass.attention = [=](const AttentionSite& s) {
    return attend_and_keep_query(s, attend, earlier);
  };
  record_decoder(r, a, pass);
}

/// The option's model; null: the base itself, named or not.
std::shared_ptr<const Architecture> find_speculator(const MethodSpec& spec, const Plan& plan) {
  const std::string named = text_option(spec, "speculator", "");
  if (named.empty()) return nullptr;
  auto found = std::make_shared<const Architecture>(plan.named_model(named));
  return same_origin(*found, plan.model) ? nullptr : found;
}

bool reuse_option(const MethodSpec& spec, const Plan& plan, bool base_speculates) {
  if (word_option(spec, "reuse", {"none", "kept"}) == "none") return false;
  if (!base_speculates) {
    throw Error("method specprefill: option reuse",
                "the speculator " + text_option(spec, "speculator", ""),
                "no speculator: only the base model's own cache can be reused");
  }
  if (shares_key_values(plan.model.decoder)) {
    throw Error(
        "method specprefill: option reuse",
        "the model " + plan.model.name + ", where layers read the keys and values of others",
        "a model whose layers all have keys and values of their own");
  }
  return true;
}

/// The kept tokens' keys and values from the speculator's cache, and the pass's own.
Value attend_to_reused(const AttentionSite& s, const Count& kept_before,
                       std::optional<Value>& kept) {
  Recorder& r = s.r;
  if (!kept) kept = r.input("kept", {s.batch(), kept_before}, DType::FP32);
  const auto reused = [&](const std::string& part, std::uint64_t features) {
    const Value theirs = r.cache(base_weights.tensors + s.name + "." + part,
                                 {s.batch(), symbol::prompt_len, features});
    const Value rows = r.gather_rows("reuse_" + part, theirs, *kept);
    return r.append(s.cache(part, 0, features), rows, "cache_reused_" + part);
  };
  if (s.layer.latent) return latent_attention(s, {reused("latents", s.layer.latent->cached())});
  const auto filled = [&](const std::string& part, Value own) {
    const Value before = reused(part, kv_features(s.layer.heads));
    const Value all = r.append(before, own, "cache_" + part);
    r.output(all);
    return all;
  };
  const Value q = s.rotate_query(s.query(), s.past);
  const Value k = filled("keys", s.rotate_key(s.key(), s.past));
  return s.attend(q, k, filled("values", s.value()), s.past);
}

/// The base's prefill on the last kept token alone.
TokenFlow reusing_flow(const Count& kept_before) {
  TokenFlow flow;
  flow.prefill = [=](Pass& pass) {
    if (pass.kept) pass.kept->earlier = KeptTokens::Earlier::Given;
    const auto kept = std::make_shared<std::optional<Value>>();
    pass.attention = [=](const AttentionSite& s) {
      return attend_to_reused(s, kept_before, *kept);
    };
  };
  flow.decode = [](Pass&) {};
  return flow;
}

void apply_specprefill(const MethodSpec& spec, Plan& plan) {
  check_prunable(spec.name, plan.model);
  const std::shared_ptr<const Architecture> own = find_speculator(spec, plan);
  check_scores(spec.name, "the speculator", own ? *own : plan.model, fraction_option(spec, "keep"));
  if (own) {
    check_prunable(spec.name, *own);
    check_speculator(*own, plan.model);
    plan.helper_models.push_back({own_weights.weights, text_option(spec, "speculator", ""), *own});
  }
  const NamePrefixes prefixes = own ? own_weights : base_weights;
  const auto speculator = [own](const Plan& p) -> const Architecture& {
    return own ? *own : p.model;
  };
  const std::uint64_t lookahead = lookahead_option(spec);
  const std::uint64_t pool = pool_option(spec);

  if (!own) plan.exclude({reads_with_own_weights()});
  plan.choose_tokens({.keep = fraction_option(spec, "keep"),
                      .chunk = whole_option(spec, "chunk", 0, 0),
                      .reused = reuse_option(spec, plan, own == nullptr)});
  if (plan.selection->reused) {
    plan.prompt_past = plan.prompt_tokens - 1;
    plan.prompt_tokens = 1;
    plan.let_flow(reusing_flow(plan.prompt_past));
    plan.not_spread.emplace_back(
        spec.name,
        "whose reuse=kept leaves the base model one token to read; one token cannot be spread over "
        "ranks, expected reuse=none");
  }
  // Scores take keys; values are for the look-ahead and for the base.
  const bool values_are_read = lookahead > 1 || plan.selection->reused;
  const AttentionMethod attend = values_are_read ? plain_attention : keys_cached_attention;
  plan.helpers.push_back({{.name = "speculator prefill",
                           .part = TtftPart::Speculator,
                           .prefixes = prefixes,
                           .reads = HelperTokens::Prompt,
                           .result = HelperResult::Logits,
                           .tokens = symbol::prompt_len},
                          [=](Recorder& r, const Plan& p) {
                            record_speculator(r, speculator(p), symbol::prompt_len, 0, attend);
                          }});
  Count queries = 1;
  if (lookahead > 1) {
    plan.selection->queries = plan.symbols.found_by_run(lookahead, "queries");
    queries = *plan.selection->queries;
    plan.helpers.push_back({{.name = "look-ahead",
                             .part = TtftPart::LookAhead,
                             .prefixes = prefixes,
                             .reads = HelperTokens::Next,
                             .result = HelperResult::Logits,
                             .tokens = 1,
                             .steps = lookahead - 1,
                             .first_kv_len = Count(symbol::prompt_len) + 1},
                            [=](Recorder& r, const Plan& p) {
                              record_speculator(r, speculator(p), 1, Count(symbol::kv_len) - 1,
                                                plain_attention);
                            }});
  }
  plan_importance(plan, prefixes, queries, pool, speculator);
}

}  // namespace

/// Speculative Prefill: a small model reads the whole prompt and looks a few tokens ahead; the base
/// model reads the tokens that it attended to most, at their own positions. Without a speculator,
/// or named as one, the base model is its own, its weights loaded once and its cache separate: only
/// with keep=1 are the two caches equal. With reuse=kept the base takes its kept tokens' keys and
/// values from that cache and reads the last of them alone: with keep=1 what it would compute
/// itself, below that keys and values that have seen the dropped tokens too, which the paper's have
/// not.
/// Source: Liu et al. 2025 (arXiv:2502.02789), section 3; defaults and order of steps from the
/// authors' code (Jingyu6/speculative_prefill).
Method specprefill() {
  return {
      "specprefill",
      MethodKind::Prompt,
      "speculator=MODEL,keep=F[,lookahead=N,chunk=C,pool=K,reuse=kept]: a small model selects the "
      "prompt tokens that the base model reads (Speculative Prefill)",
      {"speculator", "keep", "lookahead", "chunk", "pool", "reuse"},
      apply_specprefill,
      "specprefill:keep=0.5,lookahead=3,chunk=2,pool=3"};
}

}  // namespace kvcast
