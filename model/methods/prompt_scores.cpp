#include "model/methods/prompt_scores.h"

#include <algorithm>
#include <string>

#include "model/base/error.h"

namespace kvcast {

bool is_scored(const Stack& stack, const LayerShape& layer) {
  return sees_all(layer) || std::none_of(stack.layers.begin(), stack.layers.end(), sees_all);
}

Value attend_and_keep_query(const AttentionSite& s, const AttentionMethod& attend,
                            const Count& earlier) {
  const Value o = attend(s);
  if (!is_scored(s.stack, s.layer)) return o;
  const Value query = scored_query(s.r, s.layer, s.name, s.shared);
  const Value kept =
      s.r.cache(s.name + ".queries", {s.batch(), earlier, s.r.info(query).shape.back()});
  s.r.output(s.r.append(kept, query, "cache_query"));
  return o;
}

/// Where a model's heads are split, each device gathers them all, and its scores are those of one
/// device with them all. Keys that several devices have are there as often.
Heads gather_heads(Recorder& r, const LayerShape& layer, Value& q, Value& k) {
  Heads heads = scored_heads(layer);
  q = r.gather_features("gather_queries", q);
  heads.num_attention_heads *= r.tensor_parallel();
  if (layer.latent) return heads;
  k = r.gather_features("gather_keys", k);
  heads.num_key_value_heads *= r.tensor_parallel();
  return heads;
}

void record_importance(Recorder& r, const Architecture& whole, const Count& queries,
                       std::uint64_t pool) {
  const Architecture& a = r.sharding() ? r.sharding()->part() : whole;
  const Count batch = symbol::batch;
  const Count prompt = symbol::prompt_len;
  const Stack& stack = a.decoder;
  std::optional<Value> largest;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    r.enter("score", static_cast<int>(i));
    const LayerShape& layer = stack.layers[i];
    if (!is_scored(stack, layer)) continue;
    const Heads heads = scored_heads(layer);
    Value q = r.cache("layers." + std::to_string(i) + ".queries",
                      {batch, queries, query_features(heads)});
    const std::string owner = "layers." + std::to_string(layer.kv_layer.value_or(i));
    Value k =
        r.cache(owner + (layer.latent ? ".latents" : ".keys"), {batch, prompt, kv_features(heads)});
    const Heads all = gather_heads(r, layer, q, k);
    largest = r.largest_probability(attention_of(stack, all), q, k, pool, largest);
  }
  r.enter("score");
  r.output(r.row_mean("importance", *largest));
}

void plan_importance(Plan& plan, const NamePrefixes& prefixes, const Count& queries,
                     std::uint64_t pool, std::function<Architecture(const Plan&)> model) {
  plan.helpers.push_back(
      {{.name = "score",
        .part = TtftPart::Score,
        .prefixes = prefixes,
        .result = HelperResult::Importance,
        .tokens = symbol::prompt_len},
       [=](Recorder& r, const Plan& whole) { record_importance(r, model(whole), queries, pool); }});
}

void check_prunable(std::string_view method, const Architecture& a) {
  if (has_states(a.decoder)) {
    throw Error("method " + std::string(method),
                "the model " + a.name + ", whose layers keep states",
                "one that caches keys and values of all tokens");
  }
  const Position p = a.decoder.position;
  if (!a.encoder_decoder && (p == Position::Rope || p == Position::Learned)) return;
  throw Error("method " + std::string(method), "the model " + a.name,
              "a decoder-only model with rotary or learned positions");
}

void check_scores(std::string_view method, const std::string& who, const Architecture& a,
                  double keep) {
  if (keep == 1) return;
  const auto& layers = a.decoder.layers;
  if (std::any_of(layers.begin(), layers.end(), sees_all)) return;
  throw Error("method " + std::string(method),
              who + " " + a.name + ", whose layers all have windows",
              "one with a layer that attends to all tokens and can compare them");
}

}  // namespace kvcast
