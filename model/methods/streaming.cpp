#include <algorithm>

#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

bool is_chunk(const AttentionSite& s, const CacheBound& bound) {
  return bound.dropped && !(s.tokens() == Count(1));
}

/// In the cache before the pass: all of a prompt that is not read to its end.
Count rows_before(const AttentionSite& s, const CacheBound& bound) {
  return is_chunk(s, bound) ? s.past : s.r.symbols().minimum(s.past, bound.rows);
}

Count rows_dropped(const AttentionSite& s, const CacheBound& bound) {
  if (is_chunk(s, bound)) return *bound.dropped;
  const Count rows = rows_before(s, bound) + s.tokens();
  return rows - s.r.symbols().minimum(rows, bound.rows);
}

/// Keys enter the cache unrotated and are rotated on every read by their place in the cache, as if
/// the dropped tokens had never been; so does Llama 4 scale queries in layers without rotation. A
/// prompt is read whole, then the cache shrinks to one row less than its size, which leaves room
/// for the next token.
Value attend(const AttentionSite& s, const CacheBound& bound) {
  const Count past = rows_before(s, bound);
  const auto cache = [&](const std::string& part) {
    return s.r.cache(s.name + "." + part, {s.batch(), past, kv_features(s.layer.heads)});
  };
  const Value q = s.rotate_query(s.query(), past);
  const Value own_keys = s.key();
  const Value own_values = s.value();
  const Value past_keys = cache("keys");
  const auto [k, v] = s.r.append({past_keys, cache("values")}, {own_keys, own_values});
  const Value o = s.attend(q, s.rotate_key(k, 0), v, past);
  const Count dropped = rows_dropped(s, bound);
  s.r.output(s.r.evict(k, bound.kept_first, dropped, "evict_keys"));
  s.r.output(s.r.evict(v, bound.kept_first, dropped, "evict_values"));
  return o;
}

/// The same of latents, where only the rotated part of the key turns: the other part, and what
/// becomes of values, knows no positions.
Value attend_to_latents(const AttentionSite& s, const CacheBound& bound) {
  const Count past = rows_before(s, bound);
  Value all;
  LatentRows rows;
  rows.past = s.r.cache(s.name + ".latents", {s.batch(), past, s.layer.latent->cached()});
  rows.place = past;
  rows.keep = [&](Value with_own) { all = with_own; };
  const Value o = latent_attention(s, rows);
  s.r.output(s.r.evict(all, bound.kept_first, rows_dropped(s, bound), "evict_latents"));
  return o;
}

/// Where all layers have windows, the kept tokens lie within them.
void check_windows(const Architecture& a, std::uint64_t kept) {
  for (const LayerShape& layer : a.decoder.layers) {
    if (layer.attention_chunk > 0) {
      throw Error("method streaming", "model " + a.name + ", whose layers all have chunks",
                  "a model with layers that see all tokens");
    }
    if (layer.sliding_window >= kept) continue;
    throw Error("method streaming: sinks + window", std::to_string(kept) + " tokens",
                "at most the model's own window of " + std::to_string(layer.sliding_window));
  }
}

}  // namespace

/// Attention sinks and a sliding window: decoding sees the first `sinks` tokens and the last
/// `window`, the current one included. Layers that have a window or chunk of their own beside
/// others that see all tokens stay as they are. Source: Xiao et al. 2023 (StreamingLLM,
/// arXiv:2309.17453), section 3.2; positions as in the released code (mit-han-lab/streaming-llm:
/// streaming_llm/pos_shift, kv_cache.py).
Method streaming() {
  return {"streaming",
          MethodKind::Cache,
          "sinks=N,window=M: the KV cache keeps the first N and the last M tokens (StreamingLLM)",
          {"sinks", "window"},
          [](const MethodSpec& spec, Plan& plan) {
            if (plan.model.encoder_decoder || plan.model.decoder.position != Position::Rope) {
              throw Error("method streaming", "model " + plan.model.name,
                          "a decoder-only model with rotary positions");
            }
            const std::uint64_t sinks = whole_option(spec, "sinks", 0);
            const std::uint64_t window = whole_option(spec, "window", 2);
            const auto& layers = plan.model.decoder.layers;
            const bool mixed = std::any_of(layers.begin(), layers.end(), sees_all);
            if (!mixed) check_windows(plan.model, sinks + window);
            CacheBound bound{.rows = sinks + window - 1, .kept_first = sinks};
            if (plan.chunked) {
              const Count read = symbol::kv_len;
              const Count too_many = read - plan.symbols.minimum(read, bound.rows);
              bound.dropped = plan.symbols.found_by_run(too_many, "dropped", too_many);
            }
            plan.whole_prompt = !plan.chunked;
            plan.bound = bound;
            plan.attention = [=](const AttentionSite& s) {
              if (mixed && !sees_all(s.layer)) return plain_attention(s);
              return s.layer.latent ? attend_to_latents(s, bound) : attend(s, bound);
            };
          },
          "streaming:sinks=2,window=6",
          {needs_unshared_keys()}};
}

}  // namespace kvcast
