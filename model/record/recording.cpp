#include "model/record/recording.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "model/base/error.h"

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
    pass.past = options.chunked ? Count(symbol::kv_len) - symbol::prompt_len : plan.prompt_past;
    pass.given_positions = plan.given_positions;
    if (plan.token_flow) plan.token_flow->prefill(pass);
    record_decoder(r, a, pass);
  }
  return r.take();
}

Graph record_decode_step(const Plan& plan, const Lowering& lowering) {
  Recorder r(plan.symbols, lowering);
  const Count past = Count(symbol::kv_len) - 1;
  Pass pass{symbol::batch, 1, past, plan.prompt_tokens, Logits::Last, plan.attention, plan.cross};
  pass.given_positions = plan.given_positions;
  if (plan.token_flow) plan.token_flow->decode(pass);
  record_decoder(r, plan.model, pass);
  return r.take();
}

std::vector<HelperPass> record_helpers(const Plan& plan, const Lowering& lowering) {
  std::vector<HelperPass> passes;
  for (const PlannedPass& planned : plan.helpers) {
    Recorder r(plan.symbols, lowering, planned.pass.prefixes);
    planned.record(r, plan);
    passes.push_back(planned.pass);
    passes.back().graph = r.take();
  }
  return passes;
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

/// Sets the cache_bytes of all passes. Caches grow: the last pass that reads or makes one knows its
/// size.
void count_helper_caches(Recording& recording) {
  const auto base = cache_rows(recording.decode);
  std::map<std::string, std::pair<HelperPass*, Count>> last;
  for (HelperPass& pass : recording.helpers) {
    const auto rows = cache_rows(pass.graph);
    for (const TensorInfo& t : pass.graph.tensors()) {
      if (t.storage != Storage::KvCache || t.producer || base.contains(t.name)) continue;
      const bool appended = rows.at(t.name) != t.shape[1];
      if (!appended && last.contains(t.name)) continue;
      last[t.name] = {&pass, bytes_of(t.shape.back(), t.dtype) * rows.at(t.name) * t.shape[0]};
    }
  }
  for (const auto& [name, at] : last) at.first->cache_bytes += at.second;
}

/// Other methods ask each layer for keys and values of its own.
bool is_plain(const AttentionMethod& attention) {
  const auto* function = attention.target<Value (*)(const AttentionSite&)>();
  return function != nullptr && *function == plain_attention;
}

/// Rotation and masks of other attentions go by places in the cache.
void check_positions(const Plan& plan, const std::vector<MethodSpec>& methods) {
  const Stack& s = plan.model.decoder;
  if (plan.model.encoder_decoder || s.position == Position::Alibi) {
    throw Error(
        "methods " + to_string(methods), "the model " + plan.model.name,
        "a decoder-only model with rotary or learned positions: pruned prompts keep theirs");
  }
  if (s.position == Position::Rope && !is_plain(plan.attention)) {
    throw Error("methods " + to_string(methods) +
                " do not compose: kept tokens have positions of their own, and the cache method "
                "rotates by places in the cache");
  }
}

/// A base that is its own helper has to have all of its projections.
void check_own_helpers(const Plan& plan, const std::vector<MethodSpec>& methods) {
  if (plan.model.slim.empty()) return;
  for (const PlannedPass& planned : plan.helpers) {
    if (!planned.pass.prefixes.weights.empty()) continue;
    throw Error("methods " + to_string(methods) +
                " do not compose: the base reads the prompt as its own helper, with projections "
                "that slim attention has dropped; another model can be its speculator");
  }
}

bool is_helper_weight(const Recording& recording, const std::string& name) {
  return std::any_of(recording.helper_models.begin(), recording.helper_models.end(),
                     [&](const HelperModel& m) { return name.starts_with(m.prefix); });
}

/// Of dropped tokens only.
bool is_aux_cache(const TensorInfo& t) { return t.name.starts_with("aux."); }

bool is_cross_cache(const TensorInfo& t) { return t.name.find(".cross_") != std::string::npos; }

}  // namespace

Recording record(const Architecture& configured, const std::vector<MethodSpec>& methods,
                 const Lowering& lowering, const RecordOptions& options) {
  Recording recording;
  Plan plan{configured, recording.symbols, symbol::prompt_len};
  plan.find_model = options.find_model;
  plan.logits = options.logits;
  for (const MethodSpec& spec : in_order_of_work(methods)) {
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
    throw Error(
        "method " + plan.placement->method +
        " spreads the prompt over several ranks; expected 'kvcast estimate' or 'kvcast simulate "
        "prefill --schedule' for a forecast, or 'mpirun -n " +
        std::to_string(plan.placement->ranks) + " kvcast run' for a run");
  }
  if (plan.token_flow && !is_plain(plan.attention)) {
    throw Error("methods " + to_string(methods) +
                " do not compose: one of them lets each layer attend to tokens of its own, the "
                "other has another attention");
  }
  if (plan.token_flow && plan.model.decoder.num_key_value_layers > 0) {
    throw Error("methods " + to_string(methods), "the MLKV model " + plan.model.name,
                "a model whose layers all have keys and values of their own, for the tokens that "
                "they see");
  }

  check_own_helpers(plan, methods);

  const Architecture& a = plan.model;
  plan.given_positions |= plan.selection.has_value();
  if (plan.given_positions) check_positions(plan, methods);
  recording.conversion = plan.conversion;
  recording.helpers = record_helpers(plan, lowering);
  recording.helper_models = plan.helper_models;
  recording.selection = plan.selection;
  recording.given_positions = plan.given_positions;
  if (plan.token_flow) recording.revived = plan.token_flow->revived;
  recording.prompt_tokens = plan.prompt_tokens;
  recording.prompt_past = plan.prompt_past;
  recording.prefill = record_prefill(plan, lowering, options);
  recording.decode = record_decode_step(plan, lowering);
  recording.prompt_slots =
      a.encoder_decoder ? Count(options.decoder_tokens) : plan.prompt_past + plan.prompt_tokens;

  recording.model = a;

  std::map<std::string, const TensorInfo*> weights;
  for (const Graph* graph : graphs_of(recording)) add_weights(weights, *graph);
  Count parameters;
  Count helper_parameters;
  for (const auto& [name, tensor] : weights) {
    (is_helper_weight(recording, name) ? helper_parameters : parameters) += tensor->elements();
    recording.weight_bytes += tensor->bytes();
  }
  recording.parameters = parameters.constant();
  recording.helper_parameters = helper_parameters.constant();
  count_helper_caches(recording);

  const auto rows = cache_rows(recording.decode);
  for (const TensorInfo& t : recording.decode.tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    const Count per_token = bytes_of(t.shape.back(), t.dtype);
    const bool cross = is_cross_cache(t);
    if (!is_aux_cache(t)) {
      (cross ? recording.cross_cache_bytes_per_token : recording.kv_cache_bytes_per_token) +=
          per_token;
    }
    recording.kv_cache_bytes += per_token * rows.at(t.name) * symbol::batch;
  }
  return recording;
}

std::string_view name(TtftPart part) {
  switch (part) {
    case TtftPart::Speculator: return "speculator";
    case TtftPart::LookAhead: return "look_ahead";
    case TtftPart::Score: return "score";
    case TtftPart::Probe: return "probe";
    case TtftPart::Auxiliary: return "auxiliary";
    case TtftPart::Predictor: return "predictor";
    case TtftPart::Base: return "base";
  }
  KVCAST_ASSERT(false);
  return {};
}

Architecture Plan::named_model(const std::string& name) const {
  if (!find_model) throw Error("the model '" + name + "' that a method names cannot be looked up");
  return find_model(name);
}

std::vector<const Graph*> graphs_of(const Recording& recording) {
  std::vector<const Graph*> graphs;
  for (const HelperPass& pass : recording.helpers) graphs.push_back(&pass.graph);
  graphs.push_back(&recording.prefill);
  graphs.push_back(&recording.decode);
  return graphs;
}

std::uint64_t count_parameters(const Architecture& a) { return record(a, {}, {}).parameters; }

}  // namespace kvcast
