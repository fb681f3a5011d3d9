#include "model/forward/forward.h"

#include <string>

#include "model/base/error.h"

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
  std::optional<Value> bias = {};               ///< T5's or ALiBi's, shared by all layers
  std::vector<OwnedKeyValues> key_values = {};  ///< by layer
  /// After the last layer's attention only the last token goes on.
  bool last_token_leaves = false;
};

Value project(Recorder& r, std::string_view label, const std::string& prefix, Value x,
              const Count& out_features, bool bias) {
  const Value w = r.weight(prefix + ".weight", {out_features, r.info(x).shape.back()});
  std::optional<Value> b;
  if (bias) b = r.weight(prefix + ".bias", {out_features});
  return r.linear(label, x, w, b);
}

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
  const AttentionSite site{r, pass.architecture,  stack,     layer,          index, name,
                           x, pass.settings.past, pass.bias, pass.positions, shared};
  Value o = stack.causal ? pass.settings.attention(site) : bidirectional_attention(site);
  if (leaves_here(pass, index)) o = r.last_token(o);
  return project(r, "attention_output", name + ".attention_output", o,
                 pass.architecture.hidden_size, stack.attention_output_bias);
}

Value mlp(Recorder& r, const StackPass& pass, const LayerShape& layer, const std::string& name,
          Value x) {
  const Stack& stack = pass.stack;
  const std::uint64_t width = layer.intermediate_size;
  Value h = x;
  if (stack.gated_mlp) {
    const Value gate = project(r, "gate", name + ".gate", x, width, stack.mlp_bias);
    const Value up = project(r, "up", name + ".up", x, width, stack.mlp_bias);
    h = r.gated("activation", stack.activation, gate, up);
  } else {
    h = project(r, "up", name + ".up", x, width, stack.mlp_bias);
    h = r.unary("activation", stack.activation, h);
  }
  return project(r, "down", name + ".down", h, pass.architecture.hidden_size, stack.mlp_bias);
}

/// A layer without keys and values of its own.
Value attend_to_owner(const AttentionSite& s) {
  const OwnedKeyValues& owner = s.shared;
  const Value q = s.rotate_query(s.query(), s.past);
  s.shared.queries = q;
  Value k = owner.keys;
  if (s.stack.shared_keys == SharedKeys::Released) {
    k = s.past.is_zero() ? owner.new_keys : s.r.join(owner.past_keys, owner.new_keys, "join_keys");
  }
  return s.attend(q, k, owner.values, s.past);
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
  const auto post = [&](std::string_view label, Value v) {
    return stack.post_norms ? norm(label, v) : v;
  };

  r.enter(pass.phase, static_cast<int>(index));
  Value normed = norm("attention_norm", x);
  const Value attended = post("post_attention_norm", self_attention(r, pass, index, name, normed));
  if (leaves_here(pass, index)) {
    x = r.last_token(x);
    if (stack.residual == Residual::ParallelOneNorm) normed = r.last_token(normed);
  }
  if (stack.residual != Residual::Sequential) {
    const Value mlp_input =
        stack.residual == Residual::ParallelTwoNorms ? norm("mlp_norm", x) : normed;
    return add(add(mlp(r, pass, layer, name, mlp_input), attended), x);
  }
  Value h = add(x, attended);
  if (stack.cross_attention) {
    const CrossSite site{
        r, pass.architecture, index, name, pass.settings.batch, pass.settings.encoder_len, {}};
    const Value o = pass.settings.cross.attend(site, norm("cross_norm", h), cross[index]);
    h = add(h,
            site.project("output", o, pass.architecture.hidden_size, stack.attention_output_bias));
  }
  return add(h, post("post_mlp_norm", mlp(r, pass, layer, name, norm("mlp_norm", h))));
}

Value add_position_table(Recorder& r, const StackPass& pass, Value x) {
  const Stack& stack = pass.stack;
  if (stack.position != Position::Learned && stack.position != Position::Sinusoid) return x;
  const Count rows = stack.position_rows + stack.position_offset;
  const Value table =
      r.weight(pass.prefix + "positions.weight", {rows, pass.architecture.hidden_size});
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
  const std::uint64_t num_heads = stack.layers.front().heads.num_attention_heads;
  if (stack.position == Position::Alibi) {
    pass.bias = r.alibi_bias(num_heads, keys, stack.attention_scale);
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
  for (std::size_t i = 0; i < pass.stack.layers.size(); ++i) {
    x = record_layer(r, pass, i, x, cross);
    if (!pass.settings.between_layers || i + 1 == pass.stack.layers.size()) continue;
    const OwnedKeyValues& below = pass.key_values[pass.stack.layers[i].kv_layer.value_or(i)];
    x = pass.settings.between_layers({r, pass.stack, i, below, pass.positions}, x);
  }
  return x;
}

Value final_norm(Recorder& r, const StackPass& pass, Value x) {
  if (!pass.stack.final_norm) return x;
  return r.norm("final_norm", pass.stack.norm, pass.stack.norm_eps, pass.prefix + "final_norm", x);
}

Value embed_tokens(Recorder& r, const StackPass& pass) {
  const Architecture& a = pass.architecture;
  const Value table = r.weight("embedding.weight", {a.vocab_size, a.hidden_size});
  const Value ids = r.input(pass.prefix + "tokens", {pass.settings.batch, pass.settings.tokens},
                            DType::FP32);  // 4-byte ids
  const Value x = r.embedding(table, ids, "embedding");
  return a.embedding_scale == 1 ? x
                                : r.unary("embedding_scale", Function::Scale, x, a.embedding_scale);
}

Value record_head(Recorder& r, const Architecture& a, Value x) {
  if (a.logit_scale != 1) x = r.unary("logit_scale", Function::Scale, x, a.logit_scale);
  const std::string name = a.tied_embeddings ? "embedding" : "head";
  const Value w = r.weight(name + ".weight", {a.vocab_size, a.hidden_size});
  Value logits = r.linear("head", x, w);
  if (a.logit_softcap > 0) {
    logits = r.unary("logit_soft_cap", Function::SoftCap, logits, a.logit_softcap);
  }
  return logits;
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

Recorder::Attention attention_of(const Stack& stack, const Heads& heads) {
  Recorder::Attention a;
  a.heads = heads;
  a.scale = stack.attention_scale;
  a.score_scale = stack.score_scale;
  a.softcap = stack.attention_softcap;
  a.clamp_masked = stack.clamps_masked_scores;
  return a;
}

Value AttentionSite::query() const {
  const Heads& heads = layer.heads;
  const Value q = project(r, "query", name + ".query", x, query_features(heads), stack.query_bias);
  if (!stack.query_key_norm) return q;
  return r.head_norm("query_norm", stack.norm_eps, name + ".query_norm", q,
                     heads.num_attention_heads);
}

Value AttentionSite::key() const { return normed_key(projected_key()); }

Value AttentionSite::projected_key() const {
  return project(r, "key", name + ".key", x, kv_features(layer.heads), stack.key_bias);
}

Value AttentionSite::normed_key(Value k) const {
  if (!stack.query_key_norm) return k;
  return r.head_norm("key_norm", stack.norm_eps, name + ".key_norm", k,
                     layer.heads.num_key_value_heads);
}

Value AttentionSite::value() const {
  return project(r, "value", name + ".value", x, kv_features(layer.heads), stack.value_bias);
}

Value AttentionSite::rotate_query(Value q, const Count& first_position) const {
  if (stack.position != Position::Rope) return q;
  return r.rope("query_rope", q, layer.heads.num_attention_heads, layer.heads.head_dim, stack.rope,
                first_position, false, positions);
}

Value AttentionSite::rotate_key(Value k, const Count& first_position) const {
  if (stack.position != Position::Rope) return k;
  return r.rope("key_rope", k, layer.heads.num_key_value_heads, layer.heads.head_dim, stack.rope,
                first_position, false, positions);
}

Value AttentionSite::cache(const std::string& part, const Count& rows) const {
  return r.cache(name + "." + part, {batch(), rows, kv_features(layer.heads)});
}

Recorder::Attention AttentionSite::attention(const Count& queries, const Count& keys,
                                             const Count& first_position) const {
  Recorder::Attention a = attention_of(stack, layer.heads);
  a.mask = {stack.causal, layer.sliding_window, first_position};
  a.bias = bias;
  // T5 adds its mask to the shared position bias once, see add_bias().
  const bool in_bias = stack.position == Position::Relative;
  if (r.lowering().attention == Kernels::Eager && stack.causal && !in_bias) {
    a.additive_mask = r.causal_mask(a.mask, queries, keys);
  }
  return a;
}

Value AttentionSite::attend(Value q, Value k, Value v, const Count& first_position) const {
  return r.attention(attention(r.info(q).shape[1], r.info(k).shape[1], first_position), q, k, v);
}

Value CrossSite::project(std::string_view part, Value x, const Count& features, bool bias) const {
  const std::string label = "cross_" + std::string(part);
  return kvcast::project(r, label, name + "." + label, x, features, bias);
}

Value CrossSite::cache(const std::string& cache_name, const Count& features, std::string_view label,
                       const std::function<Value(Value states)>& rows) const {
  if (!states) return r.cache(cache_name, {batch, length, features});
  const Value filled = rows(*states);
  const Value empty = r.cache(cache_name, {batch, 0, features});
  const Value all = r.append(empty, filled, label);
  r.output(all);
  return all;
}

Recorder::Attention CrossSite::attention() const {
  Recorder::Attention a = attention_of(architecture.decoder, layer().heads);
  a.mask.causal = false;
  return a;
}

CrossMethod plain_cross_attention() {
  CrossMethod m;
  m.cache = [](const CrossSite& s, const std::vector<CrossCache>&) {
    const auto kept = [&](const std::string& part, bool bias) {
      const std::uint64_t features = kv_features(s.layer().heads);
      return s.cache(s.name + ".cross_" + part + "s", features, "cache_cross_" + part,
                     [&](Value states) { return s.project(part, states, features, bias); });
    };
    const Value keys = kept("key", s.architecture.decoder.key_bias);
    return CrossCache{keys, kept("value", s.architecture.decoder.value_bias)};
  };
  m.attend = [](const CrossSite& s, Value x, const CrossCache& cache) {
    const Value q =
        s.project("query", x, query_features(s.layer().heads), s.architecture.decoder.query_bias);
    return s.r.attention(s.attention(), q, cache.keys, cache.values);
  };
  return m;
}

Value plain_attention(const AttentionSite& s) {
  if (s.layer.kv_layer) return attend_to_owner(s);
  const Value q = s.query();
  const Value new_keys = s.key();
  Value v = s.value();
  const Value rotated = s.rotate_query(q, s.past);
  const Value past_keys = s.cache("keys", s.past);
  const Value k = s.r.append(past_keys, s.rotate_key(new_keys, s.past), "cache_keys");
  v = s.r.append(s.cache("values", s.past), v, "cache_values");
  s.r.output(k);
  s.r.output(v);
  s.shared = {past_keys, new_keys, k, v, rotated};
  return s.attend(rotated, k, v, s.past);
}

Value keys_cached_attention(const AttentionSite& s) {
  KVCAST_ASSERT(s.past.is_zero());
  if (s.layer.kv_layer) return attend_to_owner(s);
  const Value q = s.query();
  const Value new_keys = s.key();
  const Value v = s.value();
  const Value rotated = s.rotate_query(q, 0);
  const Value empty = s.cache("keys", 0);
  const Value k = s.r.append(empty, s.rotate_key(new_keys, 0), "cache_keys");
  s.r.output(k);
  s.shared = {empty, new_keys, k, v, rotated};
  return s.attend(rotated, k, v, 0);
}

Value record_decoder(Recorder& r, const Architecture& a, const Pass& pass,
                     std::optional<Value> encoder_states) {
  const std::string kind = a.encoder_decoder ? "decoder" : "layers";
  StackPass stack{a, a.decoder, a.encoder_decoder ? "decoder." : "", kind, pass};
  const std::vector<CrossCache> cross = cross_caches(r, a, pass, encoder_states);
  r.enter("embedding");
  Value x = embed_tokens(r, stack);
  if (pass.given_positions) {
    stack.positions = r.input("positions", {pass.batch, pass.tokens}, DType::FP32);
  }
  x = add_position_table(r, stack, x);
  add_bias(r, stack);
  stack.last_token_leaves =
      r.lowering().skip_unread_rows && pass.logits == Logits::Last && !(pass.tokens == Count(1));
  x = record_stack(r, stack, x, cross);
  if (pass.logits == Logits::None) return x;
  r.enter("head");
  // Norms and the head work row by row: only rows whose logits are wanted go through them.
  if (pass.logits == Logits::Last && !stack.last_token_leaves) x = r.last_token(x);
  const Value logits = record_head(r, a, final_norm(r, stack, x));
  r.output(logits);
  return logits;
}

Value record_encoder(Recorder& r, const Architecture& a, const Count& batch, const Count& length) {
  KVCAST_ASSERT(a.encoder_decoder);
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
