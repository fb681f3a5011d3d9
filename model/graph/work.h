/// FLOPs and bytes of operators: the only place where a formula for either lives.
#pragma once

#include <array>

#include "model/graph/graph.h"

namespace kvcast {

/// The work of one operator, or of many. Bytes are algorithmic: each operand is read once and each
/// result written once per operator.
struct Work {
  Count flops;
  std::array<Count, num_storages> read;     ///< bytes, by Storage
  std::array<Count, num_storages> written;  ///< bytes, by Storage

  Count bytes() const;
  /// To and from other ranks, in bytes.
  const Count& sent_bytes() const;
  const Count& received_bytes() const;
  Work& operator+=(const Work& other);
  bool operator==(const Work&) const = default;
  friend bool operator<(const Work& a, const Work& b);
};

/// Which rate an operator's FLOPs run at.
enum class RateClass {
  Matrix,           ///< the matrix unit on a large product with weights
  BatchedMatrix,    ///< the matrix unit on the per-head products of eager attention
  TiledAttention,   ///< the matrix unit inside a fused attention kernel
  DecodeAttention,  ///< the same kernel with one query a sequence, which streams the cache
  Vector,           ///< element-wise arithmetic
};
inline constexpr int num_rate_classes = 5;

RateClass rate_class(const Op& op);
/// The same, and of tiled attention whether it decodes.
RateClass rate_class(const Graph& graph, const Node& node);

Work work(const Graph& graph, const Node& node);
Work total_work(const Graph& graph);

/// The number of (query, key) pairs that a mask lets through, per sequence and head.
Count visible_pairs(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols);
/// The number of keys that at least one query sees, per sequence.
Count visible_keys(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols);

}  // namespace kvcast
