#include "model/forward/forward.h"

#include <algorithm>
#include <string>

#include "model/base/error.h"
#include "model/forward/altup.h"
#include "model/forward/mlp.h"
#include "model/forward/state_space.h"

namespace kvcast {

namespace {

/// What the layers of a stack share within one pass.
struct StackPass {
  const Architecture& architecture;
  const Stack& stack;
  std::string prefix;  ///< of weight and cache names: "", "encoder.", "decoder."
  std::string phase;
  const Pass& settings;
  std::optional<Value> positions = {};          ///< see Pass::given_positions
  std::optional<KeptKeys> kept = {};            ///< with layers whose windows or chunks need them
  std::optional<Value> bias = {};               ///< T5's or ALiBi's, shared by all layers
  std::vector<OwnedKeyValues> key_values = {};  ///< by layer
  std::optional<Value> chosen_keys = {};        ///< AttentionSite::chosen
  std::optional<ExpertCounts> expert_counts = {};
  std::optional<AltUpStreams> streams = {};  ///< with Stack::altup
  /// After the last layer's attention only the last token goes on.
  bool last_token_leaves = false;
  /// The layers of this device's stage.
  std::size_t first_layer = 0;
  std::size_t end_layer = stack.layers.size();
  /// Between the branches each device has some of the tokens' rows.
  bool splits_rows = false;
};

Value bidirectional_attention(const AttentionSite& s) {
  const Value q = s.rotate_query(s.query(), 0);
  const Value k = s.rotate_key(s.key(), 0);
  return s.attend(q, k, s.value(), 0);
}

bool leaves_here(const StackPass& pass, std::size_t index) {
  return pass.last_token_leaves && index + 1 == pass.stack.layers.size();
}

Value self_attention(Recorder& r, StackPass& pass, std::size_t index, const std::string& name,
                     Value x) {
  const Stack& stack = pass.stack;
  const LayerShape& layer = stack.layers[index];
  OwnedKeyValues& shared = pass.key_values[layer.kv_layer.value_or(index)];
  x = r.scaled("attention_input_scale", x, stack.attention_input_scale);
  const AttentionSite site{r,
                           pass.architecture,
                           stack,
                           layer,
                           index,
                           name,
                           x,
                           pass.settings.past,
                           pass.bias,
                           pass.positions,
                           shared,
                           pass.kept,
                           pass.settings.keeps_all_rows,
                           pass.chosen_keys};
  Value o = stack.causal ? pass.settings.attention(site) : bidirectional_attention(site);
  if (stack.attention_gate) {
    const Value gate = project(r, "attention_gate", name + ".attention_gate", x,
                               query_features(layer.heads), stack.query_bias);
    o = r.gated("gate_attention", {Function::Sigmoid}, gate, o);
  }
  if (leaves_here(pass, index)) o = r.last_token(o);
  o = project(r, "attention_output", name + ".attention_output", o, pass.architecture.hidden_size,
              stack.attention_output_bias);
  return r.scaled("attention_output_scale", o, stack.attention_output_scale);
}

/// What mixes the tokens of a layer: attention, a state space, or the sum of both.
Value mix_tokens(Recorder& r, StackPass& pass, std::size_t index, const std::string& name,
                 Value x) {
  const LayerShape& layer = pass.stack.layers[index];
  if (!layer.state_space) return self_attention(r, pass, index, name, x);
  const StateSpace& whole =
      r.sharding() ? *r.sharding()->whole().decoder.layers[index].state_space : *layer.state_space;
  const StateSpaceSite site{
      r, *layer.state_space, name, pass.settings.past, pass.stack.norm_eps, whole.norm_groups == 1};
  Value mixed = state_space(site, x);
  if (leaves_here(pass, index)) mixed = r.last_token(mixed);
  if (!layer.attends()) return mixed;
  return r.binary("add_mixers", Function::Add, mixed, self_attention(r, pass, index, name, x));
}

/// Tokens of all sequences that a layer's experts see.
Count expert_rows(const StackPass& pass, std::size_t layer) {
  const Pass& settings = pass.settings;
  const Count own = settings.tokens_in ? settings.tokens_in(layer) : settings.tokens;
  return settings.batch * (leaves_here(pass, layer) ? Count(1) : own);
}

/// Where experts are spread and each layer is counted by itself, the layer's own.
std::optional<ExpertCounts> expert_counts(Recorder& r, const StackPass& pass, std::size_t index) {
  const Sharding* const sharding = r.sharding();
  if (sharding == nullptr || !sharding->counts_by_layer() || sharding->plan().ep == 1 ||
      !pass.stack.layers[index].experts) {
    return pass.expert_counts;
  }
  const auto of_layer = [&](std::size_t layer) {
    return layer == index ? expert_rows(pass, layer) : Count();
  };
  return count_experts(r.symbols(), pass.stack, "experts_" + std::to_string(index), of_layer,
                       sharding);
}

Value record_layer(Recorder& r, StackPass& pass, std::size_t index, Value x,
                   const std::vector<CrossCache>& cross) {
  const Stack& stack = pass.stack;
  const LayerShape& layer = stack.layers[index];
  const std::string name = pass.prefix + "layers." + std::to_string(index);
  const auto norm = [&](std::string_view label, Value v) {
    return r.norm(label, stack.norm, stack.norm_eps, name + "." + std::string(label), v);
  };
  const auto add = [&](Value residual, Value branch) {
    return r.binary("residual", Function::Add, residual, branch);
  };
  const auto pre = [&](std::string_view label, Value v) {
    if (stack.pre_norms) v = norm(label, v);
    if (!pass.splits_rows) return v;
    return r.gather_token_rows("gather_rows", v, pass.settings.tokens);
  };
  const auto sum = [&](Value v) {
    return r.dropped("branch_dropout", r.sum_parts("sum_branch", v, pass.splits_rows));
  };
  const auto post = [&](std::string_view label, Value v) {
    v = sum(v);
    if (stack.post_norms) v = norm(label, v);
    return r.scaled("branch_scale", v, stack.branch_scale);
  };

  const MlpSite mlp_site{r, pass.architecture, stack, layer, name, expert_counts(r, pass, index)};
  if (!layer.attends() && !layer.state_space) {
    if (leaves_here(pass, index)) x = r.last_token(x);
    return add(x, post("post_mlp_norm", mlp(mlp_site, pre("mlp_norm", x))));
  }
  Value normed = pre("attention_norm", x);
  Value mixed = mix_tokens(r, pass, index, name, normed);
  const bool parallel = stack.residual != Residual::Sequential;
  if (!parallel) mixed = post("post_attention_norm", mixed);
  if (leaves_here(pass, index)) {
    x = r.last_token(x);
    if (stack.residual == Residual::ParallelOneNorm || stack.altup) normed = r.last_token(normed);
  }
  if (parallel) {  // one sum for both branches
    const Value mlp_input =
        stack.residual == Residual::ParallelTwoNorms ? pre("mlp_norm", x) : normed;
    return add(sum(add(mlp(mlp_site, mlp_input), mixed)), x);
  }
  Value h = add(x, mixed);
  if (stack.altup) h = with_low_rank_branch(r, pass.architecture, name, h, normed);
  if (stack.cross_attention) {
    const CrossSite site{
        r, pass.architecture, index, name, pass.settings.batch, pass.settings.encoder_len, {}};
    const Value o = pass.settings.cross.attend(site, norm("cross_norm", h), cross[index]);
    h = add(h, sum(site.project("output", o, pass.architecture.hidden_size,
                                stack.attention_output_bias)));
  }
  if (!layer.has_mlp()) return h;
  return add(h, post("post_mlp_norm", mlp(mlp_site, pre("mlp_norm", h))));
}

Value add_position_table(Recorder& r, const StackPass& pass, Value x) {
  const Stack& stack = pass.stack;
  if (stack.position != Position::Learned && stack.position != Position::Sinusoid) return x;
  const Count rows = stack.position_rows + stack.position_offset;
  const Value table =
      r.weight(pass.prefix + "positions.weight", {rows, pass.architecture.hidden_size});
  if (pass.positions && pass.splits_rows) {
    throw Error("sequence-parallel norms", "positions that a method gives to a table of them",
                "norms of all tokens on each device");
  }
  // Devices that split rows each look up those of their own.
  const Value ids = pass.positions
                        ? *pass.positions
                        : r.input(pass.prefix + "positions", {r.info(x).shape[1]}, DType::FP32);
  return r.binary("add_positions", Function::Add, x, r.embedding(table, ids, "positions"));
}

/// The bias that all layers of a stack share.
void add_bias(Recorder& r, StackPass& pass) {
  const Stack& stack = pass.stack;
  const Count& queries = pass.settings.tokens;
  const Count keys = pass.settings.past + queries + pass.settings.later;
  const std::uint64_t num_heads = first_attending(stack).heads.num_attention_heads;
  if (stack.position == Position::Alibi) {
    const std::uint64_t slice = r.sharding() ? r.sharding()->slice() : 0;
    pass.bias =
        r.alibi_bias(num_heads, keys,
                     {stack.attention_scale, num_heads * r.tensor_parallel(), num_heads * slice});
  }
  if (stack.position != Position::Relative) return;
  const Value table =
      r.weight(pass.prefix + "relative_bias.weight", {stack.relative_buckets, num_heads});
  Value bias = r.relative_position_bias(
      table,
      {stack.relative_buckets, stack.relative_max_distance, !stack.causal, pass.settings.past},
      queries, keys);
  if (r.lowering().attention == Kernels::Eager && stack.causal) {
    const Value mask = r.causal_mask({true, 0, pass.settings.past}, queries, keys);
    bias = r.binary("bias_and_mask", Function::Add, bias, mask);
  }
  pass.bias = bias;
}

Value record_stack(Recorder& r, StackPass& pass, Value x, const std::vector<CrossCache>& cross) {
  pass.key_values.resize(pass.stack.layers.size());
  const auto counted = [&](std::size_t layer) {
    const bool here = layer >= pass.first_layer && layer < pass.end_layer;
    return here ? expert_rows(pass, layer) : Count();
  };
  pass.expert_counts = count_experts(r.symbols(), pass.stack, "experts", counted, r.sharding());
  for (std::size_t i = pass.first_layer; i < pass.end_layer; ++i) {
    r.enter(pass.phase, static_cast<int>(i));
    if (pass.streams) x = pass.streams->predict(i);
    x = record_layer(r, pass, i, x, cross);
    if (pass.streams) pass.streams->correct(i, x);
    if (!pass.settings.between_layers || i + 1 == pass.end_layer) continue;
    const OwnedKeyValues& below = pass.key_values[pass.stack.layers[i].kv_layer.value_or(i)];
    x = pass.settings.between_layers({r, pass.stack, i, below, pass.positions, pass.kept}, x);
  }
  return x;
}

Value final_norm(Recorder& r, const StackPass& pass, Value x) {
  if (!pass.stack.final_norm) return x;
  return r.norm("final_norm", pass.stack.norm, pass.stack.norm_eps, pass.prefix + "final_norm", x);
}

Value embed_tokens(Recorder& r, StackPass& pass) {
  const Architecture& a = pass.architecture;
  const Value table = r.weight("embedding.weight", {a.vocab_size, a.hidden_size});
  const Value ids = r.input(pass.prefix + "tokens", {pass.settings.batch, pass.settings.tokens},
                            DType::FP32);  // 4-byte ids
  Embedding op;
  if (r.tensor_parallel() > 1) {
    op.is_part = true;
    op.first_row = r.sharding()->slice() * a.vocab_size;
  }
  const Value found =
      r.sum_parts("sum_embedding", r.embedding(table, ids, "embedding", op), pass.splits_rows);
  const Value x = r.scaled("embedding_scale", found, a.embedding_scale);
  if (pass.stack.altup) pass.streams.emplace(r, a, x, ids);
  return x;
}

Value record_head(Recorder& r, const Architecture& a, Value x, bool splits_logits) {
  x = r.scaled("logit_scale", x, a.logit_scale);
  const std::string name = a.tied_embeddings ? "embedding" : "head";
  const Value w = r.weight(name + ".weight", {a.vocab_size, a.hidden_size});
  std::optional<Value> bias;
  if (a.head_bias) bias = r.weight("head.bias", {a.vocab_size});
  Value logits = r.linear("head", x, w, bias);
  if (a.logit_softcap > 0) {
    logits = r.unary("logit_soft_cap", Function::SoftCap, logits, a.logit_softcap);
  }
  if (r.tensor_parallel() == 1 || splits_logits) return logits;
  logits = r.gather_features("gather_logits", logits);
  const std::uint64_t vocabulary = r.sharding()->whole().vocab_size;
  if (r.info(logits).shape.back() == Count(vocabulary)) return logits;
  return r.slice_features("vocabulary", logits, 0, vocabulary);
}

/// Every decoder layer's cross-attention cache: filled from the encoder's states, or read.
std::vector<CrossCache> cross_caches(Recorder& r, const Architecture& a, const Pass& pass,
                                     std::optional<Value> states) {
  std::vector<CrossCache> caches;
  if (!a.decoder.cross_attention) return caches;
  for (std::size_t i = 0; i < a.decoder.layers.size(); ++i) {
    r.enter("cross", static_cast<int>(i));
    const std::string name = "decoder.layers." + std::to_string(i);
    caches.push_back(
        pass.cross.cache({r, a, i, name, pass.batch, pass.encoder_len, states}, caches));
  }
  return caches;
}

}  // namespace

Logits parse_logits(std::string_view word) {
  if (word == "last") return Logits::Last;
  if (word == "all") return Logits::All;
  throw unknown_name("logits", word, {"last", "all"});
}

std::string_view name(Logits logits) {
  switch (logits) {
    case Logits::Last: return "last";
    case Logits::All: return "all";
    case Logits::None: return "none";
  }
  KVCAST_ASSERT(false);
  return {};
}

namespace {

/// The tokens of a pass's keys.
KeptKeys kept_keys(Recorder& r, const Pass& pass, Value positions) {
  const KeptTokens& kept = *pass.kept;
  KeptKeys keys{positions, kept.share, kept.number, kept.dropped};
  if (kept.earlier == KeptTokens::Earlier::None) return keys;
  const bool given = kept.earlier == KeptTokens::Earlier::Given;
  Value before = r.state("kept_tokens", {pass.batch, given ? Count(0) : pass.past, 1}, DType::FP32);
  if (given) {
    before = r.append(before, r.input("kept", {pass.batch, pass.past}, DType::FP32),
                      "cache_earlier_tokens");
  }
  keys.tokens = r.append(before, positions, "cache_kept_tokens");
  r.output(keys.tokens);
  return keys;
}

}  // namespace

Value record_decoder(Recorder& r, const Architecture& a, const Pass& pass,
                     std::optional<Value> encoder_states) {
  r.enter_model(a);
  const std::string kind = a.encoder_decoder ? "decoder" : "layers";
  StackPass stack{a, a.decoder, a.encoder_decoder ? "decoder." : "", kind, pass};
  const Sharding* const sharding = r.sharding();
  const bool starts = sharding == nullptr || sharding->is_first_stage();
  const bool ends = sharding == nullptr || sharding->is_last_stage();
  if (sharding != nullptr) {
    stack.first_layer = sharding->first_layer();
    stack.end_layer = sharding->end_layer();
    stack.splits_rows = sharding->plan().sequence_parallel && sharding->plan().tp > 1 &&
                        !(pass.tokens == Count(1)) && !a.decoder.altup;
  }
  const std::vector<CrossCache> cross = cross_caches(r, a, pass, encoder_states);
  r.enter("embedding");
  Count rows = pass.tokens;
  if (stack.splits_rows) rows = r.symbols().ceil_divide(rows, sharding->plan().tp);
  Value x = starts ? embed_tokens(r, stack)
                   : r.receive_states(sharding->device_of_stage(sharding->stage() - 1),
                                      {pass.batch, rows, a.hidden_size}, "receive_states");
  if (pass.given_positions) {
    stack.positions = r.input("positions", {pass.batch, pass.tokens}, DType::FP32);
    if (pass.kept && has_windows(a.decoder)) stack.kept = kept_keys(r, pass, *stack.positions);
  }
  if (starts) x = r.dropped("embedding_dropout", add_position_table(r, stack, x));
  add_bias(r, stack);
  stack.last_token_leaves = r.lowering().skip_unread_rows && pass.logits == Logits::Last &&
                            !(pass.tokens == Count(1)) && !stack.splits_rows;
  x = record_stack(r, stack, x, cross);
  if (!ends) {
    r.send_states(x, sharding->device_of_stage(sharding->stage() + 1), "send_states");
    return x;
  }
  if (stack.splits_rows) x = r.gather_token_rows("gather_rows", x, pass.tokens);
  if (pass.logits == Logits::None) return x;
  r.enter("head");
  // Norms and the head work row by row: only rows whose logits are wanted go through them.
  const bool last = pass.logits == Logits::Last && !stack.last_token_leaves;
  if (stack.streams) {
    x = stack.streams->merge(last);
  } else if (last) {
    x = r.last_token(x);
  }
  x = final_norm(r, stack, x);
  Value logits = x;
  for (const Value chunk : r.split_rows("loss_chunks", x, r.loss_chunks())) {
    logits = record_head(r, a, chunk, pass.splits_logits);
    r.output(logits);
  }
  return logits;
}

Value record_encoder(Recorder& r, const Architecture& a, const Count& batch, const Count& length) {
  KVCAST_ASSERT(a.encoder_decoder);
  r.enter_model(a);
  const Pass pass{batch, length};
  StackPass stack{a, a.encoder, "encoder.", "encoder", pass};
  r.enter("encoder_input");
  Value x;
  if (a.num_mel_bins > 0) {
    const auto conv = [&](std::string_view label, Value in, std::uint64_t stride) {
      const std::string name = "encoder." + std::string(label);
      const Value w = r.weight(name + ".weight", {a.hidden_size, r.info(in).shape.back(), 3});
      const Value b = r.weight(name + ".bias", {a.hidden_size});
      return r.unary(label, Function::Gelu, r.conv1d(label, in, w, b, 3, stride));
    };
    x = r.input("features", {batch, 2 * length, a.num_mel_bins}, r.lowering().activations);
    x = conv("conv2", conv("conv1", x, 1), 2);
  } else {
    x = embed_tokens(r, stack);
  }
  x = add_position_table(r, stack, x);
  add_bias(r, stack);
  x = record_stack(r, stack, x, {});
  r.enter("encoder_output");
  return final_norm(r, stack, x);
}

}  // namespace kvcast
