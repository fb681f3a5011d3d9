#include "model/record/training_recording.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/wide_dtype.h"
#include "model/graph/work.h"
#include "model/methods/kvp.h"

namespace kvcast {
namespace {

TensorInfo result(std::string name, std::vector<Count> shape, DType dtype,
                  Storage storage = Storage::Activations) {
  return {std::move(name), std::move(shape), dtype, storage, {}};
}

/// FLOPs of a pass's products, those with weights and those of attention: all that run, or without
/// the scores and states that the way back computes again.
Count product_flops(const Graph& graph, bool with_recomputed) {
  Count sum;
  const auto of_pairs = [&](const Node& node, const TiledAttention& op, std::uint64_t keys,
                            std::uint64_t values) {
    return graph.tensor(node.inputs[0]).shape[0] * op.visible_pairs * op.heads.num_attention_heads *
           (keys * op.heads.head_dim + values * op.value_heads().head_dim);
  };
  for (const Node& node : graph.nodes()) {
    if (const auto* op = std::get_if<TiledAttention>(&node.op)) {
      sum += of_pairs(node, *op, 2, 2);
    } else if (const auto* back = std::get_if<TiledAttentionGradient>(&node.op)) {
      sum += of_pairs(node, back->forward, with_recomputed ? 6 : 4, 4);
    } else if (const auto* scan = std::get_if<StateScanGradient>(&node.op)) {
      sum += work(graph, node).flops;
      // Of the states, of one size with each head's product of its key and value.
      const TensorInfo& k = graph.tensor(node.inputs[2]);
      const Count of_state = graph.tensor(node.inputs[3]).elements() * k.shape.back();
      const std::uint64_t again = scan->forward.delta ? 8 : 6;
      if (!with_recomputed) {
        sum -= (again * of_state).scaled(1, static_cast<std::int64_t>(scan->forward.num_groups));
      }
    } else if (rate_class(node.op) != RateClass::Vector) {
      Count flops = work(graph, node).flops;
      const std::size_t bias = std::holds_alternative<ExpertLinear>(node.op) ? 3 : 2;
      if (is_any<Linear, ExpertLinear>(node.op) && node.inputs.size() > bias) {
        flops -= graph.tensor(node.output()).elements();  // the bias
      }
      sum += flops;
    }
  }
  return sum;
}

/// Passes one after another in one graph. Weights and inputs of one name are the same, and a cache
/// that one pass fills is what the next one reads.
class JoinedPasses {
 public:
  /// The pass's tensors, by their index in it. `model` comes before its phases' names.
  std::vector<TensorId> add(const Graph& pass, std::string_view model = "") {
    std::vector<std::optional<TensorId>> at(pass.tensors().size());
    for (std::uint32_t i = 0; i < at.size(); ++i) {
      const TensorInfo& t = pass.tensors()[i];
      if (t.producer) continue;
      const auto known = known_.find({t.storage, t.name});
      at[i] = known != known_.end() && !t.rows().is_zero() ? known->second : graph_.add_tensor(t);
      if (t.storage != Storage::KvCache) known_[{t.storage, t.name}] = *at[i];
    }
    for (const Node& node : pass.nodes()) {
      std::vector<TensorInfo> results;
      for (const TensorId id : node.outputs) results.push_back(pass.tensor(id));
      Node own = node;
      own.outputs.clear();
      if (own.phase != predictor_phase) own.phase.insert(0, model);
      for (TensorId& id : own.inputs) id = *at[id.index];
      const std::vector<TensorId> made = graph_.add_node(std::move(own), std::move(results));
      for (std::size_t o = 0; o < made.size(); ++o) at[node.outputs[o].index] = made[o];
      if (std::holds_alternative<CacheAppend>(node.op)) {
        known_[{Storage::KvCache, pass.tensor(node.inputs[0]).name}] = made[0];
      }
    }
    std::vector<TensorId> tensors;
    for (const std::optional<TensorId> id : at) tensors.push_back(*id);
    return tensors;
  }
  TensorId input(const TensorInfo& info) {
    const auto [known, is_new] = known_.try_emplace({info.storage, info.name});
    if (is_new) known->second = graph_.add_tensor(info);
    return known->second;
  }
  Graph& graph() { return graph_; }

 private:
  Graph graph_;
  std::map<std::pair<Storage, std::string>, TensorId> known_;
};

/// Each chunk's lengths are terms of the costs, of which a step has at most 128
/// (roofline/step_cost.cpp).
constexpr std::uint64_t most_loss_chunks = 64;

/// The logits of a pass, of each part of the sequences: its outputs that are no caches.
std::vector<TensorId> logits_of(const Graph& pass) {
  std::vector<TensorId> logits;
  for (const TensorId id : pass.outputs()) {
    if (pass.tensor(id).storage == Storage::Activations) logits.push_back(id);
  }
  return logits;
}

Node head_node(Op op, std::vector<TensorId> inputs, std::string label) {
  return {std::move(op), std::move(inputs), {}, std::move(label), "head", no_layer};
}

TensorId target_share(JoinedPasses& passes) {
  return passes.input(result(std::string(target_share_name), {1}, DType::FP32));
}

/// The cross-entropy of logits, which are summed over in fp32 at least. A `fused` one widens what
/// it reads and narrows the gradient that it writes; else both are tensors.
/// Devices that split the vocabulary gather the sums of rows alone, not the logits.
/// Source: karpathy/llm.c, llmc/fused_classifier.cuh; transformers 5.17, loss/loss_utils.py;
/// Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
void add_loss(JoinedPasses& passes, TensorId logits, TensorId targets, CrossEntropy op,
              const std::string& name, bool fused, const Sharding* sharding) {
  Graph& graph = passes.graph();
  const TensorInfo info = graph.tensor(logits);
  const DType wide = wide_dtype(info.dtype);
  const bool casts = !fused && wide != info.dtype;
  if (casts) {
    logits = graph.add_node(head_node(Elementwise{Function::Copy}, {logits}, "cast_logits"),
                            result("", info.shape, wide));
  }
  std::vector<TensorId> inputs{logits, targets, target_share(passes)};
  if (sharding != nullptr && sharding->plan().tp > 1) {
    const std::uint64_t width = info.shape.back().constant();
    op.first = sharding->slice() * width;
    op.columns = std::min(width, sharding->whole().vocab_size - op.first);
    std::vector<Count> shape = info.shape;
    shape.back() = 1;
    inputs.push_back(graph.add_node(head_node(LogSumExp{op.columns}, {logits}, "log_sum_exp"),
                                    result("", shape, wide)));
    shape.back() = sharding->plan().tp;
    const Collective all{CollectiveKind::AllGather, sharding->tensor_group(), sharding->slice()};
    inputs.back() =
        graph.add_node(head_node(all, {inputs.back()}, "gather_log_sums"), result("", shape, wide));
  }
  graph.add_node(head_node(op, std::move(inputs), name),
                 {result("", info.shape, casts ? wide : info.dtype), result(name, {1}, wide)});
}

/// The losses of all parts of a pass's sequences: `name`, or "name.0" and so on. `at`: the pass's
/// tensors where it was added.
void add_losses(JoinedPasses& passes, const Graph& pass, const std::vector<TensorId>& at,
                const CrossEntropy& op, const std::string& name, bool fused,
                const Sharding* sharding = nullptr) {
  const std::vector<TensorId> logits = logits_of(pass);
  if (logits.empty()) return;  // a stage that sends states
  Graph& graph = passes.graph();
  std::vector<TensorInfo> parts;
  Count rows;
  const Count batch = pass.tensor(logits[0]).shape[0];
  for (const TensorId id : logits) {
    const Count& own = pass.tensor(id).shape[1];
    parts.push_back(result("", {batch, own}, DType::FP32));
    rows += own;
  }
  std::vector<TensorId> targets{
      passes.input(result(std::string(targets_name), {batch, rows}, DType::FP32))};
  if (parts.size() > 1) {
    targets = graph.add_node(head_node(SplitRows{}, targets, "target_chunks"), std::move(parts));
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    add_loss(passes, at[logits[i].index], targets[i], op,
             logits.size() == 1 ? name : fmt::format("{}.{}", name, i), fused, sharding);
  }
}

/// The last result of a layer's operators with one of these labels.
std::optional<TensorId> find_result(const Graph& pass, std::string_view phase, int layer,
                                    const std::vector<std::string_view>& labels) {
  for (const std::string_view label : labels) {
    std::optional<TensorId> found;
    for (const Node& n : pass.nodes()) {
      if (n.layer == layer && n.phase == phase && n.label == label) found = n.output();
    }
    if (found) return found;
  }
  return {};
}

/// KV Prediction in its training mode.
std::vector<MethodSpec> of_training(std::vector<MethodSpec> methods) {
  for (MethodSpec& method : methods) {
    if (method.name != "kvp") continue;
    const std::string mode = text_option(method, "mode", "");
    if (mode.empty()) method.options.emplace_back("mode", "training");
    if (!mode.empty() && mode != "training") {
      throw Error("training with method kvp", "mode=" + mode, "mode=training");
    }
  }
  return methods;
}

/// The forward passes and their losses. With an auxiliary: that, its predictions, the base on
/// these, and the base by itself, whose keys (before they are rotated) and values are the targets.
/// Source: Horton et al. 2024 (arXiv:2410.08391), section 3.2; apple/corenet, kv_prediction.py.
Graph record_forward(const Plan& plan, const Lowering& lowering, const TrainingOptions& options,
                     const Sharding* sharding) {
  const auto record_base = [&](const AttentionMethod& attention) {
    Recorder r(plan.symbols, lowering, {}, nullptr, sharding);
    r.use_dropout(options.dropout);
    r.use_loss_chunks(options.loss_chunks);
    Pass pass{symbol::batch, symbol::prompt_len, 0, {}, Logits::All, attention, plan.cross};
    pass.splits_logits = true;
    record_decoder(r, plan.model, pass);
    return r.take();
  };
  const bool fused = lowering.elementwise == Kernels::Fused;
  JoinedPasses passes;
  const Graph base = record_base(plan.base_attention());
  if (plan.helpers.empty()) {
    add_losses(passes, base, passes.add(base), {1, options.z_loss}, "loss", fused, sharding);
    return std::move(passes.graph());
  }
  if (options.base_loss + options.auxiliary_loss + options.consistency_loss == 0) {
    throw Error("training", "losses that all have a weight of 0", "one above it");
  }
  Recorder r(plan.symbols, lowering, plan.helpers.front().pass.prefixes);
  r.use_loss_chunks(options.loss_chunks);
  plan.helpers.front().record(r, plan);
  const Graph auxiliary = r.take();
  const Graph own = record_base(plain_attention);
  const std::vector<TensorId> helper_at = passes.add(auxiliary, "auxiliary.");
  if (options.auxiliary_loss > 0) {
    add_losses(passes, auxiliary, helper_at, {options.auxiliary_loss, options.z_loss},
               "auxiliary_loss", fused);
  }
  if (options.base_loss > 0) {
    add_losses(passes, base, passes.add(base), {options.base_loss, options.z_loss}, "base_loss",
               fused);
  }
  if (options.consistency_loss == 0) return std::move(passes.graph());
  const std::vector<TensorId> own_at = passes.add(own, "targets.");
  const TensorId share = target_share(passes);
  for (std::size_t i = 0; i < plan.model.decoder.layers.size(); ++i) {
    const auto layer = static_cast<int>(i);
    for (const bool keys : {true, false}) {
      using Labels = std::vector<std::string_view>;
      const auto predicted =
          find_result(auxiliary, predictor_phase, layer,
                      keys ? Labels{"key_norm", "predict_key"} : Labels{"predict_value"});
      const auto target =
          find_result(own, "layers", layer, keys ? Labels{"key_norm", "key"} : Labels{"value"});
      KVCAST_ASSERT(predicted && target);
      const TensorInfo info = auxiliary.tensor(*predicted);
      const std::string name = keys ? "key_consistency" : "value_consistency";
      passes.graph().add_node({MeanAbsoluteError{options.consistency_loss},
                               {helper_at[predicted->index], own_at[target->index], share},
                               {},
                               name,
                               std::string(predictor_phase),
                               layer},
                              {result("", info.shape, info.dtype),
                               result(name + "." + std::to_string(i), {1}, info.dtype)});
    }
  }
  return std::move(passes.graph());
}

/// Adds a node of an update.
std::vector<TensorId> add_update(Graph& graph, Op op, const std::string& label,
                                 std::vector<TensorId> inputs, std::vector<TensorInfo> outputs) {
  return graph.add_node({std::move(op), std::move(inputs), {}, label, "update", no_layer},
                        std::move(outputs));
}

/// The gradients that a pass leaves.
std::vector<TensorInfo> gradients_of(const Graph& pass) {
  std::vector<TensorInfo> gradients;
  for (const TensorId id : pass.outputs()) {
    if (pass.tensor(id).storage != Storage::Gradients) continue;
    gradients.push_back(pass.tensor(id));
    gradients.back().producer = {};
  }
  return gradients;
}

/// What becomes of the gradients.
Graph record_update(const Graph& pass, const TrainingOptions& options,
                    const std::set<std::string>& summed, const Sharding* sharding) {
  std::map<std::string, const TensorInfo*> weights;
  for (const TensorInfo& t : pass.tensors()) {
    if (t.storage == Storage::Weights) weights[t.name] = &t;
  }
  Graph graph;
  std::vector<TensorId> gradients;
  for (const TensorInfo& t : gradients_of(pass)) {
    TensorId gradient = graph.add_tensor(t);
    if (summed.contains(t.name)) {
      const Collective sum{CollectiveKind::AllReduce, sharding->tensor_group(), sharding->slice()};
      gradient = add_update(graph, sum, "sum_parts", {gradient}, {t}).front();
    }
    if (options.ends.size > 1 && sharding->whole().tied_embeddings &&
        t.name == "embedding.weight" && (sharding->is_first_stage() || sharding->is_last_stage())) {
      const Collective sum{CollectiveKind::AllReduce, options.ends, sharding->is_last_stage()};
      gradient = add_update(graph, sum, "sum_tied", {gradient}, {t}).front();
    }
    if (options.replicas.size > 1) {
      const Collective sum{CollectiveKind::AllReduce, options.replicas, options.replica};
      gradient = add_update(graph, sum, "sum_gradients", {gradient}, {t}).front();
    }
    gradients.push_back(gradient);
  }
  std::vector<TensorId> of_norm{
      graph.add_tensor(result(std::string(optimizer_name), {4}, DType::FP32))};
  for (const TensorId gradient : gradients) {
    of_norm.push_back(
        add_update(graph, SumOfSquares{}, "gradient_norm", {gradient},
                   {result("squares." + graph.tensor(gradient).name, {1}, DType::FP32)})
            .front());
  }
  const std::vector<TensorId> clipped =
      add_update(graph, ClipFactor{}, "clip", std::move(of_norm),
                 {result("", {4}, DType::FP32), result("gradient_norm", {1}, DType::FP32)});
  graph.mark_output(clipped[1]);
  for (const TensorId gradient : gradients) {
    const TensorInfo weight = *weights.at(graph.tensor(gradient).name);
    const auto state = [&](const std::string& of) {
      return result(of + weight.name, weight.shape, options.states, Storage::OptimizerStates);
    };
    const bool wide = bits_per_element(weight.dtype) >= bits_per_element(options.states);
    std::vector<TensorInfo> outputs{wide ? weight : state("master."), state("mean."),
                                    state("variance.")};
    std::vector<TensorId> inputs{graph.add_tensor(outputs[0]), gradient,
                                 graph.add_tensor(outputs[1]), graph.add_tensor(outputs[2]),
                                 clipped[0]};
    if (!wide) outputs.push_back(weight);
    AdamW op = options.optimizer;
    if (weight.shape.size() < 2) op.weight_decay = 0;
    for (const TensorId id :
         add_update(graph, op, "adamw", std::move(inputs), std::move(outputs))) {
      graph.mark_output(id);
    }
  }
  return graph;
}

/// Keys and values that several devices have would need sums over these alone.
void check_heads(const Architecture& a, std::uint64_t tp) {
  for (const LayerShape& layer : a.decoder.layers) {
    const std::uint64_t heads = layer.heads.num_key_value_heads;
    if (heads % tp == 0) continue;
    throw Error(fmt::format("training: tp {}", tp), fmt::format("{} key-value heads", heads),
                "a divisor of them");
  }
}

/// Throws Error for types that no training has, and for one that would change nothing.
void check_training_types(const Lowering& lowering, const TrainingOptions& options) {
  const DType weights = lowering.weights.main;
  const DType operands = lowering.operand_dtype();
  // Adam of 8 bits keeps its moments in int8: Dettmers et al. 2022 (arXiv:2110.02861).
  const DType states = options.states == DType::INT8 ? DType::FP8 : options.states;
  // Weights that are stored in fewer bits are not what an optimizer moves by small steps.
  for (const auto& [what, dtype, flag] :
       {std::tuple{"weights", weights, "--weight-dtype bf16"},
        std::tuple{"activations", operands, "--activation-dtype bf16"},
        std::tuple{"gradients", options.gradients.value_or(weights), "--gradient-dtype bf16"},
        std::tuple{"states", states, "--state-dtype fp32"}}) {
    const bool is_float = width(dtype).block_elements == 1 && !is_integer(dtype);
    if (is_float || (dtype == DType::FP8_B128 && dtype == weights)) continue;
    throw Error("training", fmt::format("{} of {}", what, name(dtype)),
                fmt::format("a floating-point type, such as {}", flag));
  }
  const DType products = lowering.products.value_or(product_dtype(operands, weights));
  if (lowering.operands && bits_per_element(operands) < bits_per_element(products)) {
    throw Error(
        "training",
        fmt::format("activations of {}, and products in {}", name(operands), name(products)),
        fmt::format("--arithmetic {}", name(operands)));
  }
}

}  // namespace

void check_dropout(double probability, const std::string& place) {
  if (probability >= 0 && probability < 1) return;
  throw Error(place, fmt::format("{}", probability), "from 0 to below 1");
}

void check_loss_chunks(std::uint64_t chunks, std::uint64_t seq_len) {
  if (chunks >= 1 && chunks <= std::min(seq_len, most_loss_chunks)) return;
  throw Error("--loss-chunks", std::to_string(chunks),
              seq_len < most_loss_chunks
                  ? fmt::format("from 1 to the {} tokens of a sequence", seq_len)
                  : fmt::format("from 1 to {}", most_loss_chunks));
}

TrainingRecording record_training(const Architecture& configured,
                                  const std::vector<MethodSpec>& methods, const Lowering& lowering,
                                  const TrainingOptions& options) {
  check_loss_chunks(options.loss_chunks, most_loss_chunks);
  TrainingRecording recording;
  Plan plan{{configured}, recording.symbols};
  plan.logits = Logits::All;
  plan.find_model = options.find_model;
  apply_methods(of_training(methods), plan);
  // Which changes no result. transformers has had no clamp since 4.31, and steps measured with 5.17
  // (data/measurements/training_steps.csv) save nothing for it.
  plan.model.decoder.clamps_masked_scores = false;
  if (!configured.converted_for.empty()) {
    throw Error("training",
                configured.name + ", converted for the method " + configured.converted_for,
                "the model that it was made of");
  }
  if (plan.model.encoder_decoder) {
    throw Error("training", plan.model.name + ", which has an encoder", "a decoder-only model");
  }
  check_training_types(lowering, options);
  const bool predicts = !plan.helpers.empty() &&
                        plan.helpers.front().pass.part == TtftPart::Auxiliary &&
                        plan.prompt_tokens == Count(symbol::prompt_len);
  const std::vector<LayerShape>& layers = plan.model.decoder.layers;
  const bool is_slim = std::any_of(layers.begin(), layers.end(), [](const LayerShape& layer) {
    return layer.caches != LayerCaches{};
  });
  if (plan.placement || plan.selection || plan.token_flow || plan.bound || is_slim ||
      (!plan.helpers.empty() && !predicts)) {
    throw Error("training with method " + to_string(methods),
                "a method that changes how a trained model is served", "plain, mlkv or kvp");
  }
  check_dropout(options.dropout, "--dropout");
  if (predicts && options.dropout > 0) {
    throw Error("training with method " + to_string(methods), "dropout", "none");
  }
  TrainingOptions chosen = options;
  if (predicts && !chosen.trains) {
    chosen.trains = [](const std::string& name) {
      return name.starts_with("auxiliary.") || name.starts_with(predictor_prefix);
    };
  }
  recording.model = plan.model;
  recording.helper_models = plan.helper_models;
  recording.conversion = plan.conversion;
  if (predicts) {
    const Architecture& auxiliary = plan.helper_models.front().architecture;
    const auto kvp = std::find_if(methods.begin(), methods.end(),
                                  [](const MethodSpec& m) { return m.name == "kvp"; });
    recording.predictor = {predictor_side(plan.model), predictor_side(auxiliary),
                           predictor_map(*kvp, plan.model, auxiliary)};
  }
  std::optional<Sharding> sharding;
  std::optional<Graph> whole;
  const Parallelism& split = options.split;
  if (split.tp > 1 || split.pp > 1) {
    if (predicts) {
      throw Error("training with method " + to_string(methods) + ": " + to_string(options.split),
                  "several models", "tp 1 and pp 1");
    }
    check_heads(recording.model, split.tp);
    sharding.emplace(
        recording.model,
        DevicePlace{{.tp = split.tp, .pp = split.pp, .sequence_parallel = split.sequence_parallel},
                    options.place,
                    options.stage_layers});
    if (sharding->is_first_stage()) whole = record_forward(plan, lowering, options, nullptr);
    plan.model = sharding->part();
  }
  const Sharding* const part = sharding ? &*sharding : nullptr;
  const Graph forward = record_forward(plan, lowering, options, part);
  GradientOptions gradient{chosen.trains, options.recompute, false,
                           options.gradients.value_or(lowering.weights.main), part};
  recording.first = with_gradients(forward, gradient);
  recording.hardware_flops = product_flops(recording.first.graph, true);
  if (part == nullptr || part->is_first_stage()) {
    GradientOptions of_model = gradient;
    of_model.recompute = Recompute::None;
    of_model.sharding = nullptr;
    const Graph& passes = whole ? *whole : forward;
    const Graph model = with_gradients(passes, of_model).graph;
    recording.model_flops = product_flops(model, false);
    for (const TensorInfo& gradient_of_all : gradients_of(model)) {
      recording.trained_parameters += gradient_of_all.elements().constant();
    }
    for (const TensorInfo& t : model.tensors()) {
      if (t.storage != Storage::Weights) continue;
      const std::uint64_t parameters = t.elements().constant();
      recording.parameters += parameters;
      if (t.name == "embedding.weight" && !plan.model.tied_embeddings) {
        recording.embedding_parameters = parameters;
      }
    }
    recording.active_parameters = recording.parameters - unread_by_a_token(passes).constant();
  }
  gradient.accumulates = true;
  recording.next = with_gradients(forward, gradient);
  const std::set<std::string> summed =
      part != nullptr ? summed_over_group(forward, *part) : std::set<std::string>{};
  recording.update = record_update(recording.first.graph, options, summed, part);

  for (const TensorInfo& t : recording.first.graph.tensors()) {
    if (t.storage == Storage::Weights) recording.weight_bytes += t.bytes();
  }
  for (const TensorInfo& t : recording.update.tensors()) {
    if (t.producer) continue;
    if (t.storage == Storage::Gradients) recording.gradient_bytes += t.bytes();
    if (t.storage == Storage::OptimizerStates) recording.optimizer_bytes += t.bytes();
  }
  return recording;
}

ActivationBytes activation_bytes(const TrainingPass& pass, std::span<const std::uint64_t> symbols,
                                 bool in_place) {
  const Graph& graph = pass.graph;
  const auto tensors = graph.tensors();
  const auto nodes = graph.nodes();
  std::vector<std::uint64_t> bytes(tensors.size(), 0);
  std::vector<std::size_t> last_reader(tensors.size(), 0);
  std::uint64_t live = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].storage != Storage::Activations) continue;
    bytes[t] = tensors[t].bytes().at(symbols);
    if (tensors[t].producer) last_reader[t] = tensors[t].producer->index;
    if (!tensors[t].producer) live += bytes[t];
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const TensorId id : nodes[n].inputs) last_reader[id.index] = n;
  }
  std::vector<std::vector<std::size_t>> dying(nodes.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) dying[last_reader[t]].push_back(t);
  ActivationBytes result;
  std::uint64_t gradients = 0;
  std::uint64_t loss = 0;
  const auto at_once = [&](std::uint64_t activations) {
    result.peak = std::max(result.peak, activations);
    result.peak_with_gradients = std::max(result.peak_with_gradients, activations + gradients);
  };
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (n == pass.first_backward.index) {
      result.saved = live;
      if (!in_place) at_once(live + 2 * loss);
    }
    const auto is_gradient = [&](TensorId id) {
      return tensors[id.index].storage == Storage::Gradients;
    };
    // One that is added to is where it was before.
    const bool adds = std::any_of(nodes[n].inputs.begin(), nodes[n].inputs.end(), is_gradient);
    for (const TensorId id : nodes[n].outputs) {
      live += bytes[id.index];
      if (is_gradient(id) && !adds) gradients += tensors[id.index].bytes().at(symbols);
    }
    const bool is_loss = std::holds_alternative<CrossEntropy>(nodes[n].op);
    if (is_loss) loss = std::max(loss, bytes[nodes[n].output().index]);
    const std::size_t first = nodes[n].inputs.empty() ? tensors.size() : nodes[n].inputs[0].index;
    const bool over_operand = in_place && first < tensors.size() && works_in_place(nodes[n].op) &&
                              last_reader[first] == n &&
                              bytes[first] == bytes[nodes[n].output().index];
    at_once(live - (over_operand ? bytes[first] : 0));
    for (const std::size_t t : dying[n]) live -= bytes[t];
    // The way back of a chunk begins right behind its loss.
    if (is_loss && !in_place && n >= pass.first_backward.index) {
      at_once(live + 2 * bytes[nodes[n].output().index]);
    }
  }
  return result;
}

}  // namespace kvcast
