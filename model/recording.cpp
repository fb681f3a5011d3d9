#include "model/recording.h"

#include <map>
#include <set>
#include <string>

namespace kvcast {
namespace {

Graph record_prefill(const Architecture& a, const Plan& plan, const Lowering& lowering,
                     Logits logits) {
  Recorder r(plan.symbols, lowering);
  const Count batch = symbol::batch;
  if (a.encoder_decoder) {
    const Value states = record_encoder(r, a, batch, plan.prompt_tokens);
    const auto cross = record_cross_cache(r, a, states);
    record_decoder(r, a, {batch, 1, 0, plan.prompt_tokens, logits}, cross);
  } else {
    record_decoder(r, a, {batch, plan.prompt_tokens, 0, 0, logits});
  }
  return r.take();
}

Graph record_decode_step(const Architecture& a, const Plan& plan, const Lowering& lowering) {
  Recorder r(plan.symbols, lowering);
  const Count past = Count(symbol::kv_len) - 1;
  record_decoder(r, a, {symbol::batch, 1, past, plan.prompt_tokens, Logits::Last});
  return r.take();
}

void add_weights(std::map<std::string, const TensorInfo*>& weights, const Graph& graph) {
  for (const TensorInfo& t : graph.tensors()) {
    if (t.storage == Storage::Weights) weights.emplace(t.name, &t);
  }
}

bool is_cross_cache(const TensorInfo& t) { return t.name.find(".cross_") != std::string::npos; }

}  // namespace

Recording record(const Architecture& a, const std::vector<MethodSpec>& methods,
                 const Lowering& lowering, Logits logits) {
  Recording recording;
  Plan plan{a, recording.symbols, symbol::prompt_len};
  for (const MethodSpec& spec : methods) find_method(spec.name).apply(spec, plan);

  recording.prefill = record_prefill(a, plan, lowering, logits);
  recording.decode = record_decode_step(a, plan, lowering);
  recording.prompt_slots = a.encoder_decoder ? Count(1) : plan.prompt_tokens;

  std::map<std::string, const TensorInfo*> weights;
  add_weights(weights, recording.prefill);
  add_weights(weights, recording.decode);
  Count parameters;
  for (const auto& [name, tensor] : weights) {
    parameters += tensor->elements();
    recording.weight_bytes += tensor->bytes();
  }
  recording.parameters = parameters.constant();

  for (const TensorInfo& t : recording.decode.tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    const Count per_token = bytes_of(t.shape.back(), t.dtype);
    const bool cross = is_cross_cache(t);
    (cross ? recording.cross_cache_bytes_per_token : recording.kv_cache_bytes_per_token) +=
        per_token;
    const Count slots = cross ? plan.prompt_tokens : Count(symbol::kv_len);
    recording.kv_cache_bytes += per_token * slots * symbol::batch;
  }
  return recording;
}

std::uint64_t count_parameters(const Architecture& a) { return record(a, {}, {}).parameters; }

}  // namespace kvcast
