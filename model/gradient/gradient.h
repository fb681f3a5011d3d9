/// The gradient of a recorded pass: its graph, continued backwards.
///
/// Reverse accumulation over the recorded operators: each adjoint is an operator of forward passes
/// or one of model/graph/gradient_op.h. Frozen weights get no products, and paths that lead to no
/// trained weight get none at all.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "model/config/sharding.h"
#include "model/graph/graph.h"

namespace kvcast {

/// What of the forward pass is computed again on the way back instead of kept.
enum class Recompute {
  None,
  Selective,  ///< what grows with the square of the tokens: scores and probabilities
  Full,       ///< every layer, from its input
};
/// "none", "selective" or "full". Throws Error with the nearest word.
Recompute parse_recompute(std::string_view word);
std::string_view name(Recompute recompute);

struct GradientOptions {
  /// Weights by name; null: all are trained.
  std::function<bool(const std::string& weight)> trains = nullptr;
  Recompute recompute = Recompute::None;
  /// Gradients are added to those of the passes before, which are inputs of the graph.
  bool accumulates = false;
  /// Of gradients of weights; those of activations have the types of these.
  DType weight_gradients = DType::FP32;
  /// Of a pass of one of several devices that share heads and widths; null: it has all.
  const Sharding* sharding = nullptr;
};

/// Weights that the devices of a tensor-parallel group all have, and whose gradients are sums over
/// the group: a device's own are of its heads and, where they split rows, of its rows.
std::set<std::string> summed_over_group(const Graph& forward, const Sharding& sharding);

/// A pass of a micro-batch: the forward pass up to its losses, and back.
struct TrainingPass {
  Graph graph;
  NodeId first_backward;  ///< the first node that is not of the forward pass
};

/// `forward` up to its losses (CrossEntropy, MeanAbsoluteError), and the gradients of what is
/// trained. These are tensors of Storage::Gradients that have the weights' names; they and the
/// losses are the graph's outputs. A stage of a pipeline that sends hidden states receives their
/// gradient, and sends that of those it received. Caches are empty before a pass of training and
/// read by none after it, so rows that are appended to them, and states, stay activations. Throws
/// Error where an operator between a loss and a trained weight has no adjoint.
///
/// On several devices a tensor is the same on all of a group, or a part. What reads one of the
/// first kind and gives parts (a product with a split weight) leaves a part of the sum that is its
/// gradient: an all-reduce sums these, or, where devices split rows, the reduce-scatter that is the
/// adjoint of gathering them. Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3;
/// Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.
TrainingPass with_gradients(const Graph& forward, const GradientOptions& options);

}  // namespace kvcast
