#include "model/recording.h"

#include <map>
#include <set>
#include <string>

#include "model/error.h"

namespace kvcast {
namespace {

Graph record_prefill(const Plan& plan, const Lowering& lowering, const RecordOptions& options) {
  const Architecture& a = plan.model;
  Recorder r(plan.symbols, lowering);
  const Count batch = symbol::batch;
  Pass pass{batch, plan.prompt_tokens, 0, 0, options.logits, plan.attention, plan.cross};
  if (a.encoder_decoder) {
    const Value states = record_encoder(r, a, batch, plan.prompt_tokens);
    const auto cross = record_cross_cache(r, a, plan.cross, states);
    pass.tokens = options.decoder_tokens;
    pass.encoder_len = plan.prompt_tokens;
    record_decoder(r, a, pass, cross);
  } else {
    if (options.chunked) pass.past = Count(symbol::kv_len) - symbol::prompt_len;
    record_decoder(r, a, pass);
  }
  return r.take();
}

Graph record_decode_step(const Plan& plan, const Lowering& lowering) {
  Recorder r(plan.symbols, lowering);
  const Count past = Count(symbol::kv_len) - 1;
  record_decoder(
      r, plan.model,
      {symbol::batch, 1, past, plan.prompt_tokens, Logits::Last, plan.attention, plan.cross});
  return r.take();
}

void add_weights(std::map<std::string, const TensorInfo*>& weights, const Graph& graph) {
  for (const TensorInfo& t : graph.tensors()) {
    if (t.storage == Storage::Weights) weights.emplace(t.name, &t);
  }
}

/// Rows of each cache tensor when the step's own token is in it.
std::map<std::string, Count> cache_rows(const Graph& decode) {
  std::map<std::string, Count> rows;
  for (const TensorInfo& t : decode.tensors()) {
    if (t.storage == Storage::KvCache && !t.producer) rows[t.name] = t.shape[1];
  }
  for (const Node& node : decode.nodes()) {
    if (!std::holds_alternative<CacheAppend>(node.op)) continue;
    rows[decode.tensor(node.inputs[0]).name] = decode.tensor(node.output).shape[1];
  }
  return rows;
}

/// Other methods ask each layer for keys and values of its own.
bool is_plain(const AttentionMethod& attention) {
  const auto* function = attention.target<Value (*)(const AttentionSite&)>();
  return function != nullptr && *function == plain_attention;
}

bool is_cross_cache(const TensorInfo& t) { return t.name.find(".cross_") != std::string::npos; }

}  // namespace

Recording record(const Architecture& configured, const std::vector<MethodSpec>& methods,
                 const Lowering& lowering, const RecordOptions& options) {
  Recording recording;
  Plan plan{configured, recording.symbols, symbol::prompt_len};
  for (const MethodSpec& spec : methods) {
    find_method(spec.name).apply(spec, plan);
    if (options.chunked && plan.whole_prompt) {
      throw Error("method " + spec.name + " reads the prompt in one piece; got a prompt in chunks");
    }
  }

  if (plan.model.decoder.num_key_value_layers > 0 && !is_plain(plan.attention)) {
    throw Error("methods " + to_string(methods), "the MLKV model " + plan.model.name,
                "a model whose layers all have keys and values of their own");
  }

  if (plan.placement) {
    throw Error("method " + plan.placement->method +
                " spreads the prompt over several ranks; expected 'kvcast simulate prefill' for an "
                "estimate, or 'mpirun -n " +
                std::to_string(plan.placement->ranks) + " kvcast run' for a run");
  }

  const Architecture& a = plan.model;
  recording.conversion = plan.conversion;
  recording.prefill = record_prefill(plan, lowering, options);
  recording.decode = record_decode_step(plan, lowering);
  recording.prompt_slots = a.encoder_decoder ? Count(options.decoder_tokens) : plan.prompt_tokens;

  recording.model = a;

  std::map<std::string, const TensorInfo*> weights;
  add_weights(weights, recording.prefill);
  add_weights(weights, recording.decode);
  Count parameters;
  for (const auto& [name, tensor] : weights) {
    parameters += tensor->elements();
    recording.weight_bytes += tensor->bytes();
  }
  recording.parameters = parameters.constant();

  const auto rows = cache_rows(recording.decode);
  for (const TensorInfo& t : recording.decode.tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    const Count per_token = bytes_of(t.shape.back(), t.dtype);
    const bool cross = is_cross_cache(t);
    (cross ? recording.cross_cache_bytes_per_token : recording.kv_cache_bytes_per_token) +=
        per_token;
    recording.kv_cache_bytes += per_token * rows.at(t.name) * symbol::batch;
  }
  return recording;
}

std::uint64_t count_parameters(const Architecture& a) { return record(a, {}, {}).parameters; }

}  // namespace kvcast
