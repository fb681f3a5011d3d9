/// The partition of a prompt over a chain of ranks that gives the first token soonest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "search/runahead.h"

namespace kvcast::search {

/// Seconds to the first token of a partition.
using Objective = std::function<double(std::span<const std::uint64_t>)>;

enum class PartitionAlgorithm {
  /// Our own: starts between the bounds of PartitionBound, then exchanges tokens between any two
  /// ranks. Objectives other than the recursion start from the even split.
  Balance,
  /// The paper's: from the even split, 5 values for each of the P - 1 boundaries, all combinations;
  /// then around the best with half the stride, down to 1 token.
  Grid,
  /// The same values for one boundary after another, again until none improves, at each stride.
  Coordinate,
  /// Two ranks: golden-section search, the paper's binary search with one evaluation a step.
  Golden,
};
std::string_view name(PartitionAlgorithm algorithm);
/// Throws Error with the nearest word.
PartitionAlgorithm parse_partition_algorithm(std::string_view word);

struct PartitionFound {
  Partition tokens;
  double ttft_s = 0;
  double even_ttft_s = 0;
  std::uint64_t evaluations = 0;  ///< of the objective
  /// No partition is faster. Empty where the objective is not the recursion.
  std::optional<double> lower_bound_s = {};
};

/// The grid's first stride: the largest power of two up to prompt_len/12, as Figure 6 takes 8
/// of 96.
std::uint64_t first_stride(std::uint64_t prompt_len);

/// Never worse than the even split, nor than `start`, from which the search goes on if it is the
/// better one; the same partition on every run. Throws Error when there are no ranks or fewer
/// tokens than ranks, for Golden unless there are two, and for Grid above 9 ranks (5^8
/// values a level).
PartitionFound search_partition(const Objective& objective, std::uint64_t prompt_len,
                                std::size_t ranks, PartitionAlgorithm algorithm,
                                const Partition& start = {});

/// The same by the recursion, with its lower bound.
PartitionFound search_partition(const Runahead& runahead, std::uint64_t prompt_len,
                                std::size_t ranks, PartitionAlgorithm algorithm);

}  // namespace kvcast::search
