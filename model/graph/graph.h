/// The operator graph: tensors, the operators that make them, and what waits on what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/count.h"
#include "model/base/dtype.h"
#include "model/graph/op.h"

namespace kvcast {

/// What a tensor's bytes count as.
enum class Storage {
  Weights,
  KvCache,
  Activations,
  Messages,
  Gradients,        ///< of weights
  OptimizerStates,  ///< and weights in a wider type, where the passes' are narrower
};
inline constexpr std::size_t num_storages = 6;
std::string_view name(Storage storage);

struct TensorId {
  std::uint32_t index = 0;
  auto operator<=>(const TensorId&) const = default;
};

struct NodeId {
  std::uint32_t index = 0;
  auto operator<=>(const NodeId&) const = default;
};

/// The part of a stored weight that one of several devices has (model/config/sharding.h).
struct WeightPart {
  std::vector<Count> whole;       ///< the stored tensor's shape
  std::uint64_t blocks = 1;       ///< equal blocks of its rows: experts
  std::uint64_t first_block = 0;  ///< the part has rows of these
  std::uint64_t blocks_here = 1;
  std::uint64_t first_row = 0;  ///< of each block
  std::uint64_t first_column = 0;
  bool operator==(const WeightPart&) const = default;
};

struct TensorInfo {
  std::string name;  ///< of weights and cache tensors: unique; empty for intermediate results
  std::vector<Count> shape;
  DType dtype = DType::FP32;
  Storage storage = Storage::Activations;
  std::optional<NodeId> producer;  ///< none: an input of the graph
  /// Of a cache before the pass: rows that it ever holds at most, the last ones; 0: all.
  std::uint64_t most_rows = 0;
  /// Of a weight; none: all of it. Rows beyond the stored ones are 0.
  std::optional<WeightPart> part = {};

  Count elements() const;
  /// The product of all dimensions but the last.
  Count rows() const;
  Count bytes() const { return bytes_of(elements(), dtype); }
};

inline constexpr int no_layer = -1;

struct Node {
  Op op;
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;  ///< at least one; of consecutive indices
  std::string label;              ///< what it is for: "query", "gate", "scores", ...
  std::string phase;              ///< "embedding", "layer", "head", "encoder", "cross", ...
  int layer = no_layer;

  /// Of an operator with one result, or the first of several.
  TensorId output() const { return outputs.front(); }
};

/// "layer 3, gate"; without a layer the label alone
std::string place(const Node& node);

/// Nodes are numbered in a topological order, so that what walks them is a loop and needs no
/// library; Boost.Graph routes messages over the platform's graph (simulate/platform.h), which has
/// cycles.
class Graph {
 public:
  TensorId add_tensor(TensorInfo info);
  /// Adds a node; its inputs must exist, so the order of adding is a topological order.
  TensorId add_node(Node node, TensorInfo output);
  /// The same of a node with several results.
  std::vector<TensorId> add_node(Node node, std::vector<TensorInfo> outputs);

  std::span<const TensorInfo> tensors() const { return tensors_; }
  std::span<const Node> nodes() const { return nodes_; }
  const TensorInfo& tensor(TensorId id) const { return tensors_[id.index]; }
  const Node& node(NodeId id) const { return nodes_[id.index]; }

  /// Results that outlive the pass: logits, cache tensors.
  void mark_output(TensorId id) { outputs_.push_back(id); }
  std::span<const TensorId> outputs() const { return outputs_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<Node> nodes_;
  std::vector<TensorId> outputs_;
};

/// Nodes that must end before `id` starts.
std::vector<NodeId> predecessors(const Graph& graph, NodeId id);

/// Bytes of live activations, one polynomial for each moment at which they may peak; their maximum
/// at given sizes is the activation memory of the pass. Nodes run in order, a tensor lives from its
/// producer to its last reader, graph inputs from the start.
std::vector<Count> activation_peaks(const Graph& graph);

/// Graphviz DOT. Consecutive layers with the same operators and shapes are drawn once and labelled
/// with their number.
void write_dot(std::ostream& out, const Graph& graph, const Symbols& symbols,
               std::string_view title);

}  // namespace kvcast
