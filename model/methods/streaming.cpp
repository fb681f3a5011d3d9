#include <algorithm>

#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// Keys enter the cache unrotated and are rotated on every read by their place in the cache, as if
/// the dropped tokens had never been; so does Llama 4 scale queries in layers without rotation. A
/// prompt is read whole, then the cache shrinks to one row less than its size, which leaves room
/// for the next token.
Value attend(const AttentionSite& s, std::uint64_t sinks, std::uint64_t window) {
  const std::uint64_t held = sinks + window - 1;
  const Count past = s.r.symbols().minimum(s.past, held);
  const auto cache = [&](const std::string& part) {
    return s.r.cache(s.name + "." + part, {s.batch(), past, kv_features(s.layer.heads)});
  };
  const Value q = s.rotate_query(s.query(), past);
  const Value k = s.r.append(cache("keys"), s.key(), "cache_keys");
  const Value v = s.r.append(cache("values"), s.value(), "cache_values");
  const Value o = s.attend(q, s.rotate_key(k, 0), v, past);
  const Count rows = past + s.tokens();
  const Count dropped = rows - s.r.symbols().minimum(rows, held);
  s.r.output(s.r.evict(k, sinks, dropped, "evict_keys"));
  s.r.output(s.r.evict(v, sinks, dropped, "evict_values"));
  return o;
}

/// The same of latents, where only the rotated part of the key turns: the other part, and what
/// becomes of values, knows no positions.
Value attend_to_latents(const AttentionSite& s, std::uint64_t sinks, std::uint64_t window) {
  const std::uint64_t held = sinks + window - 1;
  const Count past = s.r.symbols().minimum(s.past, held);
  Value all;
  LatentRows rows;
  rows.past = s.r.cache(s.name + ".latents", {s.batch(), past, s.layer.latent->cached()});
  rows.place = past;
  rows.keep = [&](Value with_own) { all = with_own; };
  const Value o = latent_attention(s, rows);
  const Count read = past + s.tokens();
  const Count dropped = read - s.r.symbols().minimum(read, held);
  s.r.output(s.r.evict(all, sinks, dropped, "evict_latents"));
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
            plan.whole_prompt = true;
            plan.attention = [=](const AttentionSite& s) {
              if (mixed && !sees_all(s.layer)) return plain_attention(s);
              return s.layer.latent ? attend_to_latents(s, sinks, window)
                                    : attend(s, sinks, window);
            };
          },
          "streaming:sinks=2,window=6",
          {needs_unshared_keys()}};
}

}  // namespace kvcast
