#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// Keys enter the cache unrotated and are rotated on every read by their place in the cache, as if
/// the dropped tokens had never been. A prompt is read whole, then the cache shrinks to one row
/// less than its size, which leaves room for the next token.
Value attend(const AttentionSite& s, std::uint64_t sinks, std::uint64_t window) {
  const std::uint64_t held = sinks + window - 1;
  const Count past = s.r.symbols().minimum(s.past, held);
  const Value q = s.rotate_query(s.query(), past);
  const Value k = s.r.append(s.cache("keys", past), s.key(), "cache_keys");
  const Value v = s.r.append(s.cache("values", past), s.value(), "cache_values");
  const Value o = s.attend(q, s.rotate_key(k, 0), v, past);
  const Count rows = past + s.tokens();
  const Count dropped = rows - s.r.symbols().minimum(rows, held);
  s.r.output(s.r.evict(k, sinks, dropped, "evict_keys"));
  s.r.output(s.r.evict(v, sinks, dropped, "evict_values"));
  return o;
}

}  // namespace

/// Attention sinks and a sliding window: decoding sees the first `sinks` tokens and the last
/// `window`, the current one included.
/// Source: Xiao et al. 2023 (StreamingLLM, arXiv:2309.17453), section 3.2; positions as in the
/// released code (mit-han-lab/streaming-llm: streaming_llm/pos_shift, kv_cache.py).
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
            for (const LayerShape& layer : plan.model.decoder.layers) {
              if (layer.attention_chunk > 0) {
                throw Error("method streaming", "model " + plan.model.name,
                            "a model whose layers see earlier tokens at all positions");
              }
              if (layer.sliding_window > 0 && layer.sliding_window < sinks + window) {
                throw Error(
                    "method streaming: sinks + window", std::to_string(sinks + window) + " tokens",
                    "at most the model's own window of " + std::to_string(layer.sliding_window));
              }
            }
            plan.whole_prompt = true;
            plan.attention = [=](const AttentionSite& s) { return attend(s, sinks, window); };
          },
          "streaming:sinks=2,window=6",
          needs_own_keys()};
}

}  // namespace kvcast
