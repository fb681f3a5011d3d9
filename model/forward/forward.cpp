#include "model/forward/forward.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/base/error.h"
#include "model/forward/altup.h"
#include "model/forward/mlp.h"
#include "model/forward/state_space.h"
#include "model/graph/work.h"

namespace kvcast {

Value project(Recorder& r, std::string_view label, const std::string& prefix, Value x,
              const Count& out_features, bool bias) {
  const Value w = r.weight(prefix + ".weight", {out_features, r.info(x).shape.back()});
  std::optional<Value> b;
  if (bias) b = r.weight(prefix + ".bias", {out_features});
  return r.linear(label, x, w, b);
}

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
  std::optional<Symbol> distinct_experts = {};  ///< see count_experts()
  std::optional<AltUpStreams> streams = {};     ///< with Stack::altup
  /// After the last layer's attention only the last token goes on.
  bool last_token_leaves = false;
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
                           pass.settings.keeps_all_rows};
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
  const StateSpaceSite site{r, *layer.state_space, name, pass.settings.past, pass.stack.norm_eps};
  Value mixed = state_space(site, x);
  if (leaves_here(pass, index)) mixed = r.last_token(mixed);
  if (!layer.attends()) return mixed;
  return r.binary("add_mixers", Function::Add, mixed, self_attention(r, pass, index, name, x));
}

Value clipped(Recorder& r, const Stack& stack, Value x) {
  if (stack.projection_clip == 0) return x;
  return r.unary("clip", Function::Clamp, x, stack.projection_clip);
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
  return s.attend(q, k, owner.values, s.held());
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
    return stack.pre_norms ? norm(label, v) : v;
  };
  const auto post = [&](std::string_view label, Value v) {
    if (stack.post_norms) v = norm(label, v);
    return r.scaled("branch_scale", v, stack.branch_scale);
  };

  const MlpSite mlp_site{r, pass.architecture, stack, layer, name, pass.distinct_experts};
  if (!layer.attends() && !layer.state_space) {
    if (leaves_here(pass, index)) x = r.last_token(x);
    return add(x, post("post_mlp_norm", mlp(mlp_site, pre("mlp_norm", x))));
  }
  Value normed = pre("attention_norm", x);
  const Value mixed = post("post_attention_norm", mix_tokens(r, pass, index, name, normed));
  if (leaves_here(pass, index)) {
    x = r.last_token(x);
    if (stack.residual == Residual::ParallelOneNorm || stack.altup) normed = r.last_token(normed);
  }
  if (stack.residual != Residual::Sequential) {
    const Value mlp_input =
        stack.residual == Residual::ParallelTwoNorms ? norm("mlp_norm", x) : normed;
    return add(add(mlp(mlp_site, mlp_input), mixed), x);
  }
  Value h = add(x, mixed);
  if (stack.altup) h = with_low_rank_branch(r, pass.architecture, name, h, normed);
  if (stack.cross_attention) {
    const CrossSite site{
        r, pass.architecture, index, name, pass.settings.batch, pass.settings.encoder_len, {}};
    const Value o = pass.settings.cross.attend(site, norm("cross_norm", h), cross[index]);
    h = add(h,
            site.project("output", o, pass.architecture.hidden_size, stack.attention_output_bias));
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
  pass.distinct_experts = count_experts(r.symbols(), pass.stack, "experts", [&](std::size_t layer) {
    const Pass& settings = pass.settings;
    const Count own = settings.tokens_in ? settings.tokens_in(layer) : settings.tokens;
    return settings.batch * (leaves_here(pass, layer) ? Count(1) : own);
  });
  for (std::size_t i = 0; i < pass.stack.layers.size(); ++i) {
    r.enter(pass.phase, static_cast<int>(i));
    if (pass.streams) x = pass.streams->predict(i);
    x = record_layer(r, pass, i, x, cross);
    if (pass.streams) pass.streams->correct(i, x);
    if (!pass.settings.between_layers || i + 1 == pass.stack.layers.size()) continue;
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
  const Value x =
      r.scaled("embedding_scale", r.embedding(table, ids, "embedding"), a.embedding_scale);
  if (pass.stack.altup) pass.streams.emplace(r, a, x, ids);
  return x;
}

Value record_head(Recorder& r, const Architecture& a, Value x) {
  x = r.scaled("logit_scale", x, a.logit_scale);
  const std::string name = a.tied_embeddings ? "embedding" : "head";
  const Value w = r.weight(name + ".weight", {a.vocab_size, a.hidden_size});
  std::optional<Value> bias;
  if (a.head_bias) bias = r.weight("head.bias", {a.vocab_size});
  Value logits = r.linear("head", x, w, bias);
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

Heads scored_heads(const LayerShape& layer) {
  if (!layer.latent) return layer.heads;
  return {layer.heads.num_attention_heads, 1, layer.latent->cached()};
}

Value scored_query(Recorder& r, const LayerShape& layer, const std::string& name,
                   const OwnedKeyValues& attended) {
  const Value last = r.last_token(attended.queries);
  if (!attended.query_ropes) return last;
  const Latent& l = *layer.latent;
  const std::uint64_t heads = layer.heads.num_attention_heads;
  const Value key_up = r.weight(name + ".key_up.weight", {heads * l.nope_dim, l.rank});
  return r.join_heads("join_query", {heads},
                      r.head_linear("absorb_query", {heads, heads, true}, last, key_up),
                      r.last_token(*attended.query_ropes));
}

Value normed_heads(Recorder& r, const Stack& stack, const std::string& layer_name,
                   const std::string& part, Value x, std::uint64_t num_heads) {
  const QueryKeyNorm kind = stack.query_key_norm;
  const std::string norm = part + "_norm";
  if (!norms_rotated(kind)) {
    x = r.head_norm(norm, kind, stack.norm_eps, layer_name + "." + norm, x, num_heads);
  }
  return clipped(r, stack, x);
}

Value rotated_heads(Recorder& r, const Stack& stack, const LayerShape& layer,
                    const std::string& layer_name, const std::string& part, Value x,
                    std::uint64_t num_heads, const Count& first_position,
                    const std::optional<Value>& positions) {
  if (!layer.rope) return x;
  x = r.rope(part + "_rope", x, num_heads, layer.heads.head_dim, layer.rope, first_position, false,
             positions);
  if (!norms_rotated(stack.query_key_norm)) return x;
  const std::string norm = part + "_norm";
  return r.head_norm(norm, stack.query_key_norm, stack.norm_eps, layer_name + "." + norm, x,
                     num_heads);
}

namespace {

/// All layers that read the cache of this one see the same tokens.
bool is_read_alike(const Stack& stack, std::size_t index) {
  const LayerShape& own = stack.layers[index];
  const std::size_t owner = own.kv_layer.value_or(index);
  for (std::size_t i = owner; i < stack.layers.size(); ++i) {
    const LayerShape& other = stack.layers[i];
    if (other.kv_layer.value_or(i) != owner) continue;
    if (other.sliding_window != own.sliding_window) return false;
    if (other.attention_chunk != own.attention_chunk) return false;
  }
  return true;
}

}  // namespace

Count AttentionSite::unseen_before(const Count& position) const {
  // Methods that choose tokens keep all rows.
  if (!r.bounds_caches() || keeps_all_rows || positions || !is_read_alike(stack, index)) return 0;
  if (layer.attention_chunk > 0) return r.symbols().whole_chunks(position, layer.attention_chunk);
  if (layer.sliding_window == 0) return 0;
  return position - r.symbols().minimum(position, layer.sliding_window - 1);
}

Value AttentionSite::query() const {
  const Heads& heads = layer.heads;
  const Value q = project(r, "query", name + ".query", x, query_features(heads), stack.query_bias);
  return normed_heads(r, stack, name, "query", q, heads.num_attention_heads);
}

Value AttentionSite::key() const { return normed_key(projected_key()); }

Value AttentionSite::projected_key() const {
  return project(r, "key", name + ".key", x, kv_features(layer.heads), stack.key_bias);
}

Value AttentionSite::normed_key(Value k) const {
  return normed_heads(r, stack, name, "key", k, layer.heads.num_key_value_heads);
}

Value AttentionSite::value() const {
  const Value v =
      clipped(r, stack,
              project(r, "value", name + ".value", x, kv_features(layer.heads), stack.value_bias));
  if (!stack.value_norm) return v;
  return r.head_norm("value_norm", QueryKeyNorm::RotatedHeads, stack.norm_eps, {}, v,
                     layer.heads.num_key_value_heads);
}

Value AttentionSite::rotate_query(Value q, const Count& first_position) const {
  q = rotated_heads(r, stack, layer, name, "query", q, layer.heads.num_attention_heads,
                    first_position, positions);
  if (layer.rope || stack.position_scale == 0) return q;
  return r.scale_by_position(
      q, {stack.position_scale, stack.position_floor, positions ? Count() : first_position},
      positions);
}

Value AttentionSite::rotate_key(Value k, const Count& first_position) const {
  return rotated_heads(r, stack, layer, name, "key", k, layer.heads.num_key_value_heads,
                       first_position, positions);
}

Value AttentionSite::cache(const std::string& part, const Count& rows,
                           std::uint64_t features) const {
  const bool bounded = !(before_cache() == Count(0));
  const std::uint64_t most =
      layer.attention_chunk > 0 ? layer.attention_chunk : layer.sliding_window;
  std::optional<Count> seen;  // by later tokens
  if (r.shares_caches()) {
    const Count end = past + tokens();
    seen = end - unseen_before(end);
  }
  return r.cache(name + "." + part,
                 {batch(), rows, features > 0 ? features : kv_features(layer.heads)},
                 bounded ? most : 0, seen);
}

Count AttentionSite::expected_pairs(const Count& queries) const {
  Symbols& symbols = r.symbols();
  if (past.is_zero()) {
    const auto share = [&](std::uint64_t tokens) {
      return static_cast<std::uint64_t>(std::ceil(kept->share * static_cast<double>(tokens)));
    };
    const Mask mask{stack.causal, share(layer.sliding_window), 0, share(layer.attention_chunk)};
    return visible_pairs(mask, queries, queries, symbols);
  }
  // One query, behind the kept tokens of the prompt and all later ones.
  const Count keys = past + queries;
  const Count position = past + kept->dropped;
  const Mask mask{stack.causal, layer.sliding_window, position, layer.attention_chunk};
  const Count reached = visible_keys(mask, queries, position + queries, symbols);
  const Count later = symbols.minimum(reached, keys - symbols.minimum(keys, kept->of_prompt));
  return symbols.minimum(later + symbols.ceil_fraction(reached - later, kept->share), keys);
}

Recorder::Attention AttentionSite::attention(const Count& queries, const Count& keys,
                                             const Count& first_position) const {
  Recorder::Attention a = attention_of(stack, layer.heads);
  // One query sees all that a bounded cache holds.
  const bool one_sees_all =
      queries == Count(1) && !(before_cache() == Count(0)) && first_position == held();
  a.mask = {stack.causal, one_sees_all ? 0 : layer.sliding_window, first_position,
            one_sees_all ? 0 : layer.attention_chunk};
  a.bias = bias;
  if (stack.attention_sinks) {
    a.sinks = r.weight(name + ".sinks.weight", {layer.heads.num_attention_heads});
  }
  if (kept && (a.mask.window > 0 || a.mask.chunk > 0)) {
    if (r.lowering().attention == Kernels::Eager) {
      a.additive_mask = r.token_mask({a.mask.window, a.mask.chunk}, *positions, kept->tokens);
    } else {
      a.first = r.first_seen({a.mask.window, a.mask.chunk, {}}, kept->tokens, queries,
                             expected_pairs(queries));
    }
    a.mask.window = 0;
    a.mask.chunk = 0;
    return a;
  }
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
  if (s.layer.latent) return latent_attention(s);
  if (s.layer.kv_layer) return attend_to_owner(s);
  const Value q = s.query();
  const Value new_keys = s.key();
  Value v = s.value();
  const Value rotated = s.rotate_query(q, s.past);
  const Value past_keys = s.cache("keys", s.held());
  const Value k = s.r.append(past_keys, s.rotate_key(new_keys, s.past), "cache_keys");
  v = s.r.append(s.cache("values", s.held()), v, "cache_values");
  s.r.output(k);
  s.r.output(v);
  s.shared = {past_keys, new_keys, k, v, rotated};
  return s.attend(rotated, k, v, s.held());
}

Value keys_cached_attention(const AttentionSite& s) {
  KVCAST_ASSERT(s.past.is_zero());
  if (s.layer.latent) return latent_attention(s);
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
  const std::vector<CrossCache> cross = cross_caches(r, a, pass, encoder_states);
  r.enter("embedding");
  Value x = embed_tokens(r, stack);
  if (pass.given_positions) {
    stack.positions = r.input("positions", {pass.batch, pass.tokens}, DType::FP32);
    if (pass.kept && has_windows(a.decoder)) stack.kept = kept_keys(r, pass, *stack.positions);
  }
  x = add_position_table(r, stack, x);
  add_bias(r, stack);
  stack.last_token_leaves =
      r.lowering().skip_unread_rows && pass.logits == Logits::Last && !(pass.tokens == Count(1));
  x = record_stack(r, stack, x, cross);
  if (pass.logits == Logits::None) return x;
  r.enter("head");
  // Norms and the head work row by row: only rows whose logits are wanted go through them.
  const bool last = pass.logits == Logits::Last && !stack.last_token_leaves;
  if (stack.streams) {
    x = stack.streams->merge(last);
  } else if (last) {
    x = r.last_token(x);
  }
  const Value logits = record_head(r, a, final_norm(r, stack, x));
  r.output(logits);
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
