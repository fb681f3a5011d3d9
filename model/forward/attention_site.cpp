#include "model/forward/attention_site.h"

#include <cmath>

#include "model/base/error.h"
#include "model/graph/work.h"

namespace kvcast {
namespace {

Value clipped(Recorder& r, const Stack& stack, Value x) {
  if (stack.projection_clip == 0) return x;
  return r.unary("clip", Function::Clamp, x, stack.projection_clip);
}

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

}  // namespace

Value project(Recorder& r, std::string_view label, const std::string& prefix, Value x,
              const Count& out_features, bool bias) {
  const Value w = r.weight(prefix + ".weight", {out_features, r.info(x).shape.back()});
  std::optional<Value> b;
  const bool adds_bias = bias && (r.sharding() == nullptr || r.sharding()->adds_bias(prefix));
  if (adds_bias) b = r.weight(prefix + ".bias", {out_features});
  return r.linear(label, x, w, b);
}

Value with_all_features(Recorder& r, const std::string& part, Value x,
                        const std::function<Value(Value)>& f) {
  if (r.tensor_parallel() == 1) return f(x);
  const std::uint64_t own = r.info(x).shape.back().constant();
  const Value all = f(r.gather_features("gather_" + part, x));
  return r.slice_features("own_" + part, all, r.sharding()->slice() * own, own);
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
  const Value ropes = r.last_token(*attended.query_ropes);
  const Value absorbed = r.head_linear("absorb_query", {heads, heads, true}, last, key_up);
  return r.join_heads("join_query", {heads}, absorbed, ropes);
}

Value normed_heads(Recorder& r, const Stack& stack, const std::string& layer_name,
                   const std::string& part, Value x, std::uint64_t num_heads) {
  const QueryKeyNorm kind = stack.query_key_norm;
  const std::string norm = part + "_norm";
  const auto normed = [&](Value all) {
    return r.head_norm(norm, kind, stack.norm_eps, layer_name + "." + norm, all, num_heads);
  };
  if (kind == QueryKeyNorm::Whole) {
    x = with_all_features(r, part, x, normed);
  } else if (!norms_rotated(kind)) {
    x = normed(x);
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
  return scale_query(q, first_position);
}

Value AttentionSite::scale_query(Value q, const Count& first_position) const {
  if (stack.position_scale == 0 || (layer.rope && !stack.scales_rotated)) return q;
  return r.scale_by_position(q,
                             {stack.position_scale, stack.position_floor,
                              positions ? Count() : first_position, stack.floor_offset},
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

Value plain_attention(const AttentionSite& s) {
  if (s.layer.latent) return latent_attention(s);
  if (s.layer.kv_layer) return attend_to_owner(s);
  const Value q = s.query();
  const Value new_keys = s.key();
  const Value new_values = s.value();
  const Value rotated = s.rotate_query(q, s.past);
  const Value past_keys = s.cache("keys", s.held());
  const Value rotated_keys = s.rotate_key(new_keys, s.past);
  const Value past_values = s.cache("values", s.held());
  const auto [k, v] = s.r.append({past_keys, past_values}, {rotated_keys, new_values});
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

}  // namespace kvcast
