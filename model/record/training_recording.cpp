#include "model/record/training_recording.h"

#include <algorithm>
#include <map>
#include <utility>

#include "model/base/error.h"
#include "model/base/wide_dtype.h"
#include "model/graph/work.h"

namespace kvcast {
namespace {

TensorInfo result(std::string name, std::vector<Count> shape, DType dtype,
                  Storage storage = Storage::Activations) {
  return {std::move(name), std::move(shape), dtype, storage, {}};
}

/// FLOPs of a pass's products, those with weights and those of attention: all that run, or without
/// the scores that tiled attention computes again on the way back.
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
    } else if (rate_class(node.op) != RateClass::Vector) {
      Count flops = work(graph, node).flops;
      if (std::holds_alternative<Linear>(node.op) && node.inputs.size() > 2) {
        flops -= graph.tensor(node.output()).elements();  // the bias
      }
      sum += flops;
    }
  }
  return sum;
}

/// The forward pass and its loss.
Graph record_forward(const Plan& plan, const Lowering& lowering, double z_loss) {
  Recorder r(plan.symbols, lowering);
  Pass pass{symbol::batch, symbol::prompt_len,    0,         {},
            Logits::All,   plan.base_attention(), plan.cross};
  const Value logits = record_decoder(r, plan.model, pass);
  Graph graph = r.take();
  const TensorInfo of_logits = graph.tensor(logits);
  const DType wide = wide_dtype(of_logits.dtype);
  TensorId x = logits;
  const auto node = [](Op op, std::vector<TensorId> inputs, std::string label) {
    return Node{std::move(op), std::move(inputs), {}, std::move(label), "head", no_layer};
  };
  if (wide != of_logits.dtype) {
    x = graph.add_node(node(Elementwise{Function::Copy}, {x}, "cast_logits"),
                       result("", of_logits.shape, wide));
  }
  const TensorId targets = graph.add_tensor(
      result(std::string(targets_name), {of_logits.shape[0], of_logits.shape[1]}, DType::FP32));
  const TensorId share = graph.add_tensor(result(std::string(target_share_name), {1}, DType::FP32));
  graph.add_node(node(CrossEntropy{1, z_loss}, {x, targets, share}, "loss"),
                 {result("", of_logits.shape, wide), result("loss", {1}, wide)});
  return graph;
}

/// What becomes of the gradients.
Graph record_update(const Graph& pass, const TrainingOptions& options) {
  std::map<std::string, const TensorInfo*> weights;
  for (const TensorInfo& t : pass.tensors()) {
    if (t.storage == Storage::Weights) weights[t.name] = &t;
  }
  Graph graph;
  const auto add = [&](Op op, const std::string& label, std::vector<TensorId> inputs,
                       std::vector<TensorInfo> outputs) {
    return graph.add_node({std::move(op), std::move(inputs), {}, label, "update", no_layer},
                          std::move(outputs));
  };
  std::vector<TensorId> gradients;
  for (const TensorId id : pass.outputs()) {
    const TensorInfo& t = pass.tensor(id);
    if (t.storage != Storage::Gradients) continue;
    TensorInfo own = t;
    own.producer = {};
    TensorId gradient = graph.add_tensor(own);
    if (options.replicas.size > 1) {
      const Collective sum{CollectiveKind::AllReduce, options.replicas, 0};
      gradient = add(sum, "sum_gradients", {gradient}, {own}).front();
    }
    gradients.push_back(gradient);
  }
  for (const TensorId gradient : gradients) {
    add(SumOfSquares{}, "gradient_norm", {gradient},
        {result("squares." + graph.tensor(gradient).name, {1}, DType::FP32)});
  }
  const TensorId settings = graph.add_tensor(result("optimizer", {4}, DType::FP32));
  for (const TensorId gradient : gradients) {
    const TensorInfo& weight = *weights.at(graph.tensor(gradient).name);
    const auto state = [&](const std::string& of) {
      return result(of + weight.name, weight.shape, DType::FP32, Storage::OptimizerStates);
    };
    const bool wide = bits_per_element(weight.dtype) >= bits_per_element(DType::FP32);
    TensorInfo own = weight;
    std::vector<TensorInfo> outputs{wide ? own : state("master."), state("mean."),
                                    state("variance.")};
    std::vector<TensorId> inputs{graph.add_tensor(outputs[0]), gradient,
                                 graph.add_tensor(outputs[1]), graph.add_tensor(outputs[2]),
                                 settings};
    if (!wide) outputs.push_back(own);
    AdamW op = options.optimizer;
    if (weight.shape.size() < 2) op.weight_decay = 0;
    for (const TensorId id : add(op, "adamw", std::move(inputs), std::move(outputs))) {
      graph.mark_output(id);
    }
  }
  return graph;
}

}  // namespace

TrainingRecording record_training(const Architecture& configured,
                                  const std::vector<MethodSpec>& methods, const Lowering& lowering,
                                  const TrainingOptions& options) {
  TrainingRecording recording;
  Plan plan{{configured}, recording.symbols};
  plan.logits = Logits::All;
  apply_methods(methods, plan);
  if (plan.model.encoder_decoder) {
    throw Error("training", plan.model.name + ", which has an encoder", "a decoder-only model");
  }
  if (plan.placement || plan.selection || !plan.helpers.empty() || plan.token_flow || plan.bound) {
    throw Error("training with method " + to_string(methods),
                "a method that changes how a trained model is served", "plain or mlkv");
  }
  const Graph forward = record_forward(plan, lowering, options.z_loss);
  GradientOptions gradient{options.trains, options.recompute, false,
                           options.gradients.value_or(lowering.weights.main)};
  recording.first = with_gradients(forward, gradient);
  recording.hardware_flops = product_flops(recording.first.graph, true);
  gradient.recompute = Recompute::None;
  recording.model_flops = product_flops(with_gradients(forward, gradient).graph, false);
  gradient.recompute = options.recompute;
  gradient.accumulates = true;
  recording.next = with_gradients(forward, gradient);
  recording.update = record_update(recording.first.graph, options);

  for (const TensorInfo& t : recording.first.graph.tensors()) {
    if (t.storage != Storage::Weights) continue;
    recording.parameters += t.elements().constant();
    recording.weight_bytes += t.bytes();
    if (t.name == "embedding.weight" && !plan.model.tied_embeddings) {
      recording.embedding_parameters = t.elements().constant();
    }
  }
  for (const TensorInfo& t : recording.update.tensors()) {
    if (t.producer) continue;
    if (t.storage == Storage::Gradients) {
      recording.trained_parameters += t.elements().constant();
      recording.gradient_bytes += t.bytes();
    }
    if (t.storage == Storage::OptimizerStates) recording.optimizer_bytes += t.bytes();
  }
  return recording;
}

ActivationBytes activation_bytes(const TrainingPass& pass, std::span<const std::uint64_t> symbols) {
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
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (n == pass.first_backward.index) result.saved = live;
    for (const TensorId id : nodes[n].outputs) live += bytes[id.index];
    const std::size_t first = nodes[n].inputs.empty() ? tensors.size() : nodes[n].inputs[0].index;
    const bool in_place = first < tensors.size() && works_in_place(nodes[n].op) &&
                          last_reader[first] == n && bytes[first] == bytes[nodes[n].output().index];
    result.peak = std::max(result.peak, live - (in_place ? bytes[first] : 0));
    for (const std::size_t t : dying[n]) live -= bytes[t];
  }
  return result;
}

}  // namespace kvcast
