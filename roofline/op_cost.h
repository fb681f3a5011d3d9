/// A recorded pass as a list of distinct operators, and the seconds that each needs.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/graph/graph.h"
#include "model/graph/work.h"
#include "roofline/rates.h"

namespace kvcast::roofline {

/// Which limit an operator's time comes from.
enum class Bound { Compute, Memory, Link, Latency };
inline constexpr std::size_t num_bounds = 4;
std::string_view name(Bound bound);

/// An operand that an element-wise operator repeats over its other operand, as the mask over the
/// heads. If more than the on-chip memory flows between two uses, it is read from memory again.
struct Broadcast {
  Count operand_bytes;  ///< zero: nothing is repeated
  Count times;
  std::strong_ordering operator<=>(const Broadcast&) const = default;
};

/// A cache tensor that several layers of a pass read, such as an encoder's states. When it fits the
/// on-chip memory, only the first of them reads it from memory.
struct Sharing {
  Count operand_bytes;  ///< that one layer reads of it; zero: each layer reads its own
  std::uint64_t layers = 1;
  std::strong_ordering operator<=>(const Sharing&) const = default;
};

/// What an operator exchanges with a group of devices, on top of what it computes.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::AllReduce;
  RankGroup group;
  Count bytes;  ///< as Interconnect::curve takes them
  std::strong_ordering operator<=>(const CollectiveCall&) const = default;
};

/// What decides the time of an operator.
struct OpCost {
  Count flops;
  Count bytes;  ///< algorithmic
  RateClass rate_class = RateClass::Vector;
  BandwidthClass bandwidth_class = BandwidthClass::Memory;
  /// Read again from the on-chip memory, where another unit of the device has just read them.
  Count reread_bytes;
  Broadcast broadcast;
  Sharing sharing;
  /// Of an eager operator that mostly moves numbers: what it reads from operators before it and
  /// writes for those after it. If this fits the on-chip memory, it never leaves the chip.
  Count intermediate_bytes;
  /// Rows of a product with weights; except in decode steps, keys in a softmax's rows and those
  /// that causal tiled attention without a window sees. Zero for operators whose rate was not
  /// measured by length.
  Count length;
  /// Of a grouped product: how many products its rows are divided among, each with a weight of its
  /// own. The rate is that of `length` / `groups` rows. Zero: one.
  Count groups;
  /// `groups` follows from measured loads, which rates need not correct (Rates::uneven_loads).
  bool measured_loads = false;
  /// Of a product that multiplies another type than most: Rates::other_products.
  std::optional<DType> products = {};
  /// Of a product with weights narrower than its operands: their type, and how many of `bytes` they
  /// are (Rates::weight_bandwidth).
  std::optional<DType> stored_weights = {};
  Count weight_bytes = {};
  std::optional<CollectiveCall> collective = {};
  std::strong_ordering operator<=>(const OpCost&) const = default;
};

/// Results overwrite operands, so half of the bytes that an operator moves are on the chip at once.
inline double most_intermediate_bytes(double on_chip_bytes) { return 2 * on_chip_bytes; }

/// Operators of one pass that are alike in every respect, and how many there are; or launches of
/// several, whose labels are joined by '+'.
struct OpGroup {
  std::string phase;
  std::string label;
  std::string op;
  RateClass rate_class = RateClass::Vector;
  BandwidthClass bandwidth_class = BandwidthClass::Memory;
  Work work;           ///< of one of them
  Count reread_bytes;  ///< OpCost
  Broadcast broadcast;
  Sharing sharing;
  Count intermediate_bytes;
  Count length;
  Count groups;
  bool measured_loads = false;
  std::optional<DType> products = {};
  std::optional<DType> stored_weights = {};
  std::optional<CollectiveCall> collective = {};  ///< whose bytes are not in `work`
  std::uint64_t count = 0;

  Count stored_weight_bytes() const {
    return stored_weights ? work.read[static_cast<std::size_t>(Storage::Weights)] : Count();
  }
  OpCost cost() const {
    return {work.flops,      work.bytes(),          rate_class,
            bandwidth_class, reread_bytes,          broadcast,
            sharing,         intermediate_bytes,    length,
            groups,          measured_loads,        products,
            stored_weights,  stored_weight_bytes(), collective};
  }
};

/// OpGroup::op of kernels beside a launch, which follow its group and are no node's.
inline constexpr const char* conversion_name = "convert";

/// A graph's launches in groups, and the group of each node.
struct FoldedGraph {
  std::vector<OpGroup> groups;
  /// no_group: of Send and Receive, and of all nodes of a launch but the first.
  std::vector<std::size_t> group_of_node;
};
inline constexpr auto no_group = static_cast<std::size_t>(-1);

/// Folds identical launches (mostly those of identical layers; launches.h) into groups, in order of
/// first appearance. Send and Receive are left out: messages take time on links, not on the device.
/// So are the work and the messages of a Collective, which is a group with OpGroup::collective.
FoldedGraph fold_nodes(const Graph& graph, const Lowering& lowering);
/// The groups alone.
std::vector<OpGroup> fold(const Graph& graph, const Lowering& lowering);

Work total_work(const std::vector<OpGroup>& groups);
/// The number of operators of each cost. Groups that differ only in their labels cost the same.
std::map<OpCost, std::uint64_t> merge(const std::vector<OpGroup>& groups);

/// Seconds of an operator whose loads overlap with its arithmetic, but for `exposed` of them: never
/// less than the loads take.
inline double busy_seconds(double compute, double memory, double exposed) {
  return std::max(memory, compute + exposed * memory);
}

}  // namespace kvcast::roofline
