#include <cmath>
#include <string>
#include <utility>

#include "model/base/error.h"
#include "model/forward/attention_site.h"

namespace kvcast {
namespace {

/// The keys that each query attends to, by the input of its heads and by the layer's input.
/// Source: transformers, models/deepseek_v32/modeling_deepseek_v32.py, DeepseekV32Indexer.
Value chosen_keys(const AttentionSite& s, const Indexer& indexer, Value q_in, const Mask& mask) {
  Recorder& r = s.r;
  constexpr double index_eps = 1e-6;
  const auto projected = [&](const std::string& part, Value x, std::uint64_t features) {
    return project(r, part, s.name + "." + part, x, features, false);
  };
  const auto rotated = [&](const std::string& label, Value x, std::uint64_t num_heads) {
    return r.rope(label, x, num_heads, indexer.head_dim, indexer.rope, s.past, false, s.positions);
  };
  const Value q = rotated("index_query_rope",
                          projected("index_query", q_in, indexer.num_heads * indexer.head_dim),
                          indexer.num_heads);
  const Value key = r.norm("index_key_norm", NormKind::Layer, index_eps, s.name + ".index_key_norm",
                           projected("index_key", s.x, indexer.head_dim));
  const Value keys = r.append(s.cache("index_keys", s.held(), indexer.head_dim),
                              rotated("index_key_rope", key, 1), "cache_index_keys");
  r.output(keys);
  const auto numbers = static_cast<double>(indexer.num_heads * indexer.head_dim);
  const Value weights =
      r.unary("index_scale", Function::Scale, projected("index_weights", s.x, indexer.num_heads),
              1 / std::sqrt(numbers));
  ChooseKeys op;
  op.num_heads = indexer.num_heads;
  op.kept = indexer.kept;
  op.mask = mask;
  return r.choose_keys(std::move(op), q, keys, weights);
}

/// modeling_deepseek_v3.py, whatever rms_norm_eps says.
constexpr double latent_eps = 1e-6;

}  // namespace

Value normed_latent(Recorder& r, const std::string& name, Value projected) {
  const std::string label = "kv_latent_norm";
  return r.norm(label, NormKind::Rms, latent_eps, name + "." + label, projected);
}

/// A decode step of a serving engine multiplies queries and outputs by what would expand the
/// latents to keys and values ("absorbed"), and so do prompts whose queries choose their keys; all
/// else expands them.
Value latent_attention(const AttentionSite& s, const LatentRows& cached) {
  Recorder& r = s.r;
  const Latent& l = *s.layer.latent;
  const std::uint64_t heads = s.layer.heads.num_attention_heads;
  const auto projected = [&](const std::string& part, Value x, std::uint64_t features,
                             bool bias = false) {
    return project(r, part, s.name + "." + part, x, features, bias);
  };
  // Not labelled as the rotation that follows it.
  const auto rope_part = [&](const std::string& of, Value x, std::uint64_t features, bool bias) {
    return project(r, of + "_rotary", s.name + "." + of + "_rope", x, features, bias);
  };
  const auto normed = [&](const std::string& part, Value x) {
    return r.norm(part + "_norm", NormKind::Rms, latent_eps, s.name + "." + part + "_norm", x);
  };
  const auto rotated = [&](const std::string& label, Value x, std::uint64_t num_heads,
                           const Count& first) {
    return r.rope(label, x, num_heads, l.rope_dim, s.layer.rope, first, false, s.positions);
  };
  const Count first = cached.place.value_or(s.past);
  Value q_in = s.x;
  if (l.query_rank > 0) {
    q_in = normed("query_latent", projected("query_latent", s.x, l.query_rank, s.stack.query_bias));
  }
  Value q = s.scale_query(projected("query_nope", q_in, heads * l.nope_dim), first);
  const Value q_rope = s.scale_query(
      rotated("query_rope", rope_part("query", q_in, heads * l.rope_dim, false), heads, first),
      first);
  const Value unnormed = projected("kv_latent", s.x, l.rank, s.stack.key_bias);
  const Value latent = normed_latent(r, s.name, unnormed);
  Value key_rope = rope_part("key", s.x, l.rope_dim, s.stack.key_bias);
  if (cached.projected) cached.projected(unnormed, key_rope);
  if (!cached.place) key_rope = rotated("key_rope", key_rope, 1, first);
  const Value own = r.join_heads("join_latent", {1}, latent, key_rope);
  const auto with_cached = [&] {
    const Value past = cached.past ? *cached.past : s.cache("latents", s.held(), l.cached());
    const Value appended = r.append(past, own, "cache_latents");
    if (cached.keep) {
      cached.keep(appended);
    } else {
      r.output(appended);
    }
    return cached.read ? cached.read(appended) : appended;
  };
  Value all = cached.uncached ? own : with_cached();

  const Value key_up = r.weight(s.name + ".key_up.weight", {heads * l.nope_dim, l.rank});
  const Value value_up = r.weight(s.name + ".value_up.weight", {heads * l.value_dim, l.rank});
  const Count held = cached.place.value_or(s.held());
  Recorder::Attention a =
      cached.settings ? *cached.settings : s.attention(s.tokens(), r.info(all).shape[1], held);
  s.shared = {all, all, all, all, q, q_rope};
  const bool fused = r.lowering().attention == Kernels::Fused;
  if (l.indexer) {
    if (cached.past || cached.read || cached.settings) {
      throw Error("the model " + s.architecture.name, "a method that attends to tokens it chooses",
                  "none: each query of the model chooses its own");
    }
    if (l.indexer->num_heads > 0) s.chosen = chosen_keys(s, *l.indexer, q_in, a.mask);
    KVCAST_ASSERT(s.chosen);
    (fused ? a.chosen : a.additive_mask) = s.chosen;
    if (fused) a.kept = l.indexer->kept;
  }
  const bool is_first = !cached.read && r.info(all).shape[1] == s.tokens();
  const auto latents = [&] {
    return is_first ? latent : r.slice_features("latents", all, 0, l.rank);
  };
  const auto key_ropes = [&] {
    const Value ropes =
        is_first ? key_rope : r.slice_features("key_ropes", all, l.rank, l.rope_dim);
    return cached.place ? rotated("key_rope", ropes, 1, 0) : ropes;
  };
  const bool absorbs = fused && (l.indexer || s.tokens() == Count(1));
  if (absorbs) {
    if (cached.place) {
      const Value unturned = latents();
      all = r.join_heads("join_turned", {1}, unturned, key_ropes());
    }
    q = r.head_linear("absorb_query", {heads, heads, true}, q, key_up);
    q = r.join_heads("join_query", {heads}, q, q_rope);
    s.shared.queries = q;
    s.shared.query_ropes.reset();
    a.heads = scored_heads(s.layer);
    a.num_value_heads = 1;
    a.value_dim = l.rank;
    return r.head_linear("expand_output", {heads, heads}, r.attention(a, q, all, all), value_up);
  }
  const Value rows = latents();
  const Value turned = key_ropes();
  const Value k =
      r.join_heads("join_keys", {heads, true}, r.linear("key_up", rows, key_up), turned);
  q = r.join_heads("join_query", {heads}, q, q_rope);
  a.num_value_heads = heads;
  a.value_dim = l.value_dim;
  return r.attention(a, q, k, r.linear("value_up", rows, value_up));
}

}  // namespace kvcast
