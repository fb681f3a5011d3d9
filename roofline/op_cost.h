/// A recorded pass as a list of distinct operators, and the seconds that each needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/work.h"
#include "roofline/rates.h"

namespace kvcast::roofline {

/// Which limit an operator's time comes from.
enum class Bound { Compute, Memory, Link, Latency };
inline constexpr std::size_t num_bounds = 4;
std::string_view name(Bound bound);

/// An operand that an element-wise operator repeats over its other one, such as the mask over the
/// heads. When more than the on-chip memory flows between two uses, it is read from memory again.
struct Repetition {
  Count operand_bytes;  ///< zero: nothing is repeated
  Count times;
  bool operator==(const Repetition&) const = default;
};

/// A cache tensor that several layers of a pass read, such as an encoder's states. When it fits the
/// on-chip memory, only the first of them reads it from memory.
struct Sharing {
  Count operand_bytes;  ///< that one layer reads of it; zero: each layer reads its own
  std::uint64_t layers = 1;
  bool operator==(const Sharing&) const = default;
};

/// Operators of one pass that are alike in every respect, and how many there are.
struct OpGroup {
  std::string phase;
  std::string label;
  std::string op;
  Engine engine = Engine::Vector;
  Stream stream = Stream::Memory;
  Work work;  ///< of one of them
  Repetition repetition;
  Sharing sharing;
  std::uint64_t count = 0;
};

/// Folds identical operators (mostly those of identical layers) into groups, in order of their
/// first appearance. Messages keep links busy and no device: Send and Receive are left out.
std::vector<OpGroup> fold(const Graph& graph, const Lowering& lowering);

Work total_work(const std::vector<OpGroup>& groups);

/// One operator of a group at given sizes.
struct OpTime {
  Flops flops;
  Bytes bytes;         ///< algorithmic
  Bytes bytes_again;   ///< read again because a repeated operand left the on-chip memory
  Bytes bytes_spared;  ///< found in the on-chip memory, where another layer had read them
  Seconds compute;
  Seconds memory;
  Seconds total;  ///< the longer of both, the exposed part of the shorter, and the latency
  Bound bound = Bound::Compute;
};

/// `values`: of all symbols (Symbols::resolve).
OpTime time_of(const OpGroup& group, const Rates& rates, std::span<const std::uint64_t> values);

}  // namespace kvcast::roofline
