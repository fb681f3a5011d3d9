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
  /// To other ranks, in bytes.
  const Count& sent_bytes() const;
  const Count& received_bytes() const;
  Work& operator+=(const Work& other);
  bool operator==(const Work&) const = default;
  friend bool operator<(const Work& a, const Work& b);
};

/// True for operators whose kernels may write their first result where input 0 lay.
bool works_in_place(const Op& op);

/// As rate_class(Op), but DecodeAttention for tiled attention with one query.
RateClass rate_class(const Graph& graph, const Node& node);

Work work(const Graph& graph, const Node& node);
Work total_work(const Graph& graph);

/// The number of (query, key) pairs that a mask lets through, per sequence and head.
Count visible_pairs(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols);
/// The number of keys that at least one query sees, per sequence.
Count visible_keys(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols);

}  // namespace kvcast
