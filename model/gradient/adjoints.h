/// What the adjoints of single operators record.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/graph/graph.h"

namespace kvcast {

/// The way back through one graph, of which an adjoint sees one node.
class Backward {
 public:
  virtual ~Backward() = default;

  /// A trained weight, or something that is computed from one.
  virtual bool is_active(TensorId of_forward) const = 0;
  /// As the backward pass reads it: kept, or computed again.
  virtual TensorId value(TensorId of_forward) = 0;
  /// The second result of the forward node, likewise.
  virtual TensorId saved() = 0;
  /// The forward tensor.
  virtual const TensorInfo& info(TensorId of_forward) const = 0;
  /// Of a tensor on the way back.
  virtual const TensorInfo& gradient_info(TensorId gradient) const = 0;
  /// Adds a node: the label of the forward node and `what`. Results have the shape and the type of
  /// `like`, a forward tensor.
  virtual TensorId add(Op op, std::string_view what, std::vector<TensorId> inputs,
                       TensorId like) = 0;
  virtual std::vector<TensorId> add(Op op, std::string_view what, std::vector<TensorId> inputs,
                                    std::vector<TensorId> like) = 0;
  /// Adds a node with results of any form.
  virtual std::vector<TensorId> add_results(Op op, std::string_view what,
                                            std::vector<TensorId> inputs,
                                            std::vector<TensorInfo> results) = 0;
  /// `gradient` of a forward tensor, one of as many as it has readers.
  virtual void contribute(TensorId of_forward, TensorId gradient) = 0;
  /// The same of a weight, by an operator that starts from what was summed before.
  virtual void accumulate(TensorId weight, Op op, std::string_view what,
                          std::vector<TensorId> inputs) = 0;
};

/// The results of a node that have gradients: the first one, of a Route the weights, of a
/// MixStreams all.
std::vector<TensorId> results_with_gradient(const Node& node);

/// Records the gradients of a node's operands from those of these results, `gradients`. Throws
/// Error for operators without an adjoint.
void record_adjoint(Backward& back, const Node& node, const std::vector<TensorId>& gradients);

/// The second result that the operator has for its adjoint, if it has one.
std::optional<TensorInfo> saved_result(const Graph& forward, const Node& node);

}  // namespace kvcast
