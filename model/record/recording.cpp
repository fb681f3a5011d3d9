#include "model/record/recording.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "model/forward/state_space.h"

namespace kvcast {
namespace {

/// The prompt's tokens that a method has left; none: all.
std::optional<KeptTokens> kept_tokens(const Plan& plan) {
  if (!plan.selection || plan.selection->keep == 1) return {};
  const Count number = plan.prompt_past + plan.prompt_tokens;
  return KeptTokens{plan.selection->keep, number, Count(symbol::prompt_len) - number};
}

Graph record_prefill(const Plan& plan, const Lowering& lowering, const RecordOptions& options,
                     const Sharding* sharding) {
  const Architecture& a = plan.model;
  Recorder r(plan.symbols, lowering, {}, nullptr, sharding);
  const Count batch = symbol::batch;
  Pass pass{batch, plan.prompt_tokens, 0, 0, options.logits, plan.base_attention(), plan.cross};
  if (a.encoder_decoder) {
    const Value states = record_encoder(r, a, batch, plan.prompt_tokens);
    pass.tokens = options.decoder_tokens;
    pass.encoder_len = plan.prompt_tokens;
    record_decoder(r, a, pass, states);
  } else {
    pass.past = plan.chunked ? Count(symbol::kv_len) - symbol::prompt_len : plan.prompt_past;
    pass.given_positions = plan.given_positions;
    pass.kept = kept_tokens(plan);
    if (plan.token_flow) plan.token_flow->prefill(pass);
    record_decoder(r, a, pass);
  }
  return r.take();
}

Graph record_decode_step(const Plan& plan, const Lowering& lowering, const Sharding* sharding) {
  Recorder r(plan.symbols, lowering, {}, nullptr, sharding);
  const Count past = Count(symbol::kv_len) - 1;
  Pass pass{symbol::batch,         1,         past, plan.prompt_tokens, Logits::Last,
            plan.base_attention(), plan.cross};
  pass.given_positions = plan.given_positions;
  pass.kept = kept_tokens(plan);
  if (plan.token_flow) plan.token_flow->decode(pass);
  record_decoder(r, plan.model, pass);
  return r.take();
}

bool chooses_tokens(TtftPart part) {
  return part == TtftPart::Speculator || part == TtftPart::LookAhead || part == TtftPart::Score;
}

bool divides(const Parallelism& p, const Architecture& a) {
  try {
    check_parallelism(a, p);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// A device's part of the model that chooses tokens, which a tensor-parallel group splits as it
/// does the base. One that it does not divide lies whole on each device; so does that of replicas,
/// and of the first stage of a pipeline.
std::optional<Sharding> part_of_helper(const Plan& plan, const RecordedPass& pass,
                                       const std::optional<DevicePlace>& place) {
  if (!place || place->plan.pp > 1 || place->plan.dp > 1 || !chooses_tokens(pass.part)) return {};
  const Parallelism split{.tp = place->plan.tp};
  for (const HelperModel& helper : plan.helper_models) {
    if (helper.prefix != pass.prefixes.tensors || !divides(split, helper.architecture)) continue;
    return Sharding(helper.architecture, {split, place->device, {}, place->counts_by_layer});
  }
  return {};
}

std::vector<RecordedPass> record_helpers(const Plan& plan, const Lowering& lowering,
                                         const std::optional<DevicePlace>& place) {
  std::vector<RecordedPass> passes;
  if (place && place->device >= place->plan.of_stage()) return passes;
  for (const PlannedPass& planned : plan.helpers) {
    const std::optional<Sharding> part = part_of_helper(plan, planned.pass, place);
    Recorder r(plan.symbols, lowering, planned.pass.prefixes, nullptr, part ? &*part : nullptr);
    planned.record(r, plan);
    passes.push_back(planned.pass);
    passes.back().graph = r.take();
  }
  return passes;
}

/// Throws Error for methods that need all of the base on one device. A replica has all of it.
void check_spread(const Plan& plan, const Parallelism& p) {
  if (p.tp == 1 && p.pp == 1 && p.ep == 1) return;
  const auto refuse = [&](const std::string& why, const std::string& expected) {
    throw Error(to_string(p) + ": methods " + plan.methods + ": " + why + "; expected " + expected);
  };
  for (const PlannedPass& helper : plan.helpers) {
    const bool reads_parts = helper.pass.prefixes.weights.empty();
    if (chooses_tokens(helper.pass.part) && !reads_parts) continue;
    refuse(
        "a helper pass reads the base's weights or fills its caches, of which a device has a part",
        "specprefill, whose speculator is a model of its own, or one device");
  }
  if (plan.token_flow) {
    refuse(p.tp > 1 ? "tokens are chosen by the scores of all heads, of which a device has a part"
                    : "messages between devices hold all tokens, also those that a layer drops",
           "a method that chooses them before the base reads them, or one device");
  }
  if (p.tp == 1) return;
  for (const LayerShape& layer : plan.model.decoder.layers) {
    const auto split = [](CacheForm form) {
      return form == CacheForm::KeysAndValues || form == CacheForm::Inputs;
    };
    if (split(layer.caches.self) && split(layer.caches.cross)) continue;
    refuse("a head's values are computed from the keys of all heads, of which a device has a part",
           "slim:option=xcache, or tp 1");
  }
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
    rows[decode.tensor(node.inputs[0]).name] = decode.tensor(node.output()).shape[1];
  }
  return rows;
}

/// Sets the cache_bytes of all passes. Caches grow: the last pass that reads or makes one knows its
/// size.
void count_helper_caches(Recording& recording) {
  const auto base = cache_rows(recording.decode());
  std::map<std::string, std::pair<RecordedPass*, Count>> last;
  for (RecordedPass& pass : std::span(recording.passes).first(recording.helpers().size())) {
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

bool is_helper_weight(const Recording& recording, const std::string& name) {
  return std::any_of(recording.helper_models.begin(), recording.helper_models.end(),
                     [&](const HelperModel& m) { return name.starts_with(m.prefix); });
}

/// Of dropped tokens only.
bool is_aux_cache(const TensorInfo& t) { return t.name.starts_with("aux."); }

bool is_cross_cache(const TensorInfo& t) { return t.name.find(".cross_") != std::string::npos; }

}  // namespace

Count unread_by_a_token(const Graph& pass) {
  Count unread;
  std::set<TensorId> seen;
  for (const Node& node : pass.nodes()) {
    const auto* const op = std::get_if<ExpertLinear>(&node.op);
    if (op == nullptr) continue;
    for (std::size_t i = 2; i < node.inputs.size(); ++i) {
      if (!seen.insert(node.inputs[i]).second) continue;
      unread += pass.tensor(node.inputs[i])
                    .elements()
                    .scaled(static_cast<std::int64_t>(op->num_experts - op->num_experts_per_tok),
                            static_cast<std::int64_t>(op->num_experts));
    }
  }
  return unread;
}

Recording record(const Architecture& configured, const std::vector<MethodSpec>& methods,
                 const Lowering& lowering, const RecordOptions& options) {
  Recording recording;
  Plan plan{{configured}, recording.symbols};
  plan.find_model = options.find_model;
  plan.logits = options.logits;
  plan.chunked = options.chunked || options.steps;
  plan.steps = options.steps;
  for (const MethodSpec& method : methods) {
    if (text_option(method, "mode", "") != "training") continue;
    throw Error("method " + method.name + ": mode=training", "a pass that does not train",
                "kvcast estimate --train");
  }
  apply_methods(methods, plan);
  if (plan.placement) {
    throw Error(
        "method " + plan.placement->method +
        " spreads the prompt over several ranks; expected 'kvcast estimate' or 'kvcast simulate "
        "prefill --schedule' for a forecast, or 'mpirun -n " +
        std::to_string(plan.placement->ranks) + " kvcast run' for a run");
  }

  static_cast<MethodEffects&>(recording) = plan;
  const bool is_spread = options.place && !options.place->plan.is_one();
  if (is_spread) check_spread(plan, options.place->plan);
  recording.passes = record_helpers(plan, lowering, is_spread ? options.place : std::nullopt);
  std::optional<Sharding> sharding;
  if (is_spread) {
    sharding.emplace(recording.model, *options.place);
    plan.model = sharding->part();
  }
  const Sharding* const part = sharding ? &*sharding : nullptr;
  const Architecture& a = plan.model;
  const auto add = [&](std::string_view name, const Count& tokens, Graph graph) {
    RecordedPass pass{.name = std::string(name), .part = TtftPart::Base, .tokens = tokens};
    pass.graph = std::move(graph);
    recording.passes.push_back(std::move(pass));
  };
  add(prefill_name, plan.prompt_tokens, record_prefill(plan, lowering, options, part));
  add(decode_name, 1, record_decode_step(plan, lowering, part));
  recording.prompt_slots =
      a.encoder_decoder ? Count(options.decoder_tokens) : plan.prompt_past + plan.prompt_tokens;

  std::map<std::string, const TensorInfo*> weights;
  for (const Graph* graph : graphs_of(recording)) add_weights(weights, *graph);
  Count parameters;
  Count helper_parameters;
  for (const auto& [name, tensor] : weights) {
    (is_helper_weight(recording, name) ? helper_parameters : parameters) += tensor->elements();
    recording.weight_bytes += tensor->bytes();
    const WeightClass of = weight_class(name, tensor->shape.size());
    recording.weight_bytes_by_class[std::string(of.group)] += tensor->bytes();
  }
  recording.parameters = parameters.constant();
  recording.active_parameters = (parameters - unread_by_a_token(recording.decode())).constant();
  recording.helper_parameters = helper_parameters.constant();
  count_helper_caches(recording);

  const auto rows = cache_rows(recording.decode());
  for (const TensorInfo& t : recording.decode().tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    const Count per_token = bytes_of(t.shape.back(), t.dtype);
    if (is_state(t.name)) {
      const Count state = per_token * t.most_rows * symbol::batch;
      recording.state_bytes += state;
      recording.kv_cache_bytes += state;
      continue;
    }
    const bool cross = is_cross_cache(t);
    if (!is_aux_cache(t)) {
      (cross ? recording.cross_cache_bytes_per_token : recording.kv_cache_bytes_per_token) +=
          per_token;
      if (!cross && t.most_rows == 0) recording.kv_cache_bytes_per_token_beyond_window += per_token;
    }
    Count held = rows.at(t.name);
    if (t.most_rows > 0) held = recording.symbols.minimum(symbol::kv_len, t.most_rows);
    recording.kv_cache_bytes += per_token * held * symbol::batch;
  }
  return recording;
}

std::string_view name(TtftPart part) {
  static constexpr Words<TtftPart, num_ttft_parts> parts = {{{TtftPart::Speculator, "speculator"},
                                                             {TtftPart::LookAhead, "look_ahead"},
                                                             {TtftPart::Score, "score"},
                                                             {TtftPart::Probe, "probe"},
                                                             {TtftPart::Auxiliary, "auxiliary"},
                                                             {TtftPart::Predictor, "predictor"},
                                                             {TtftPart::Base, "base"}}};
  return word_for(part, parts);
}

const RecordedPass& Recording::pass(std::string_view name) const {
  const auto found = std::find_if(passes.begin(), passes.end(),
                                  [&](const RecordedPass& p) { return p.name == name; });
  KVCAST_ASSERT(found != passes.end());
  return *found;
}

RecordedPass& Recording::pass(std::string_view name) {
  return const_cast<RecordedPass&>(std::as_const(*this).pass(name));
}

std::span<const RecordedPass> Recording::helpers() const {
  const auto own = std::find_if(passes.begin(), passes.end(),
                                [](const RecordedPass& p) { return p.part == TtftPart::Base; });
  return std::span(passes).first(static_cast<std::size_t>(own - passes.begin()));
}

void check_prompt_length(const Recording& recording, std::uint64_t prompt_len) {
  if (!recording.selection) return;
  const std::uint64_t chunk = recording.selection->chunk;
  if (chunk > prompt_len) {
    throw Error("method specprefill: option chunk", std::to_string(chunk),
                fmt::format("at most the prompt's {} tokens", prompt_len));
  }
  for (const RecordedPass& pass : recording.helpers()) {
    for (const Node& node : pass.graph.nodes()) {
      const auto* const op = std::get_if<LargestProbability>(&node.op);
      // As many before as after: from 2n - 1 on, every mean is over all n tokens.
      if (op == nullptr || op->pool / 2 <= prompt_len) continue;
      throw Error(
          "method specprefill: option pool", std::to_string(op->pool),
          fmt::format("at most {} for a prompt of {} tokens", 2 * prompt_len + 1, prompt_len));
    }
  }
}

std::vector<const Graph*> graphs_of(const Recording& recording) {
  std::vector<const Graph*> graphs;
  for (const RecordedPass& pass : recording.passes) graphs.push_back(&pass.graph);
  return graphs;
}

std::uint64_t count_parameters(const Architecture& a) { return record(a, {}, {}).parameters; }

}  // namespace kvcast
