/// A certificate for a partition search: a TTFT that no partition can beat.
///
/// TTFT is the longest path through the grid of processes (and links) by layers. For a given T the
/// paths that stay in one process, or one link, from the first layer to the last bound each
/// boundary of the partition from both sides, because a process's times grow with its tokens and
/// with its keys. Where the bounds cross, no partition reaches T.
#pragma once

#include <cstdint>
#include <vector>

#include "search/runahead.h"

namespace kvcast::search {

/// The bound and the recursion add the same times in another order: sums of some hundred doubles,
/// each rounded by 1e-16, and a few bits for what they cancel.
inline constexpr double bound_rounding = 1e-9;

/// What a TTFT of T leaves for the end of each part, both included.
struct BoundaryRanges {
  bool feasible = false;  ///< false: no partition reaches T
  std::vector<std::uint64_t> lowest;
  std::vector<std::uint64_t> highest;
};

class PartitionBound {
 public:
  /// Throws Error when there are no processes or fewer tokens than processes.
  PartitionBound(const Runahead& runahead, std::uint64_t context, std::size_t processes);

  BoundaryRanges ranges(double ttft_s);
  /// The largest T found infeasible, to within a relative 1e-6; `reached`: of some partition.
  /// With SendOrder::Block and Async up to 20 % below the best partition where links are slow: a
  /// path may change its process or link halfway, which is left out.
  double lower_bound_s(double reached);

 private:
  struct Row {
    double start_s = 0;   ///< to the first exchange
    double layers_s = 0;  ///< from the first exchange to the last
    double end_s = 0;     ///< behind the last exchange
  };
  Row row(std::size_t process, std::uint64_t tokens, std::uint64_t keys);
  double message_s(std::size_t layer, std::uint64_t tokens) const;
  double link_layers_s(std::uint64_t tokens) const;
  /// Whether any bound moved.
  bool tighten(double ttft_s, BoundaryRanges& r);

  const Runahead& runahead_;
  std::uint64_t context_;
  std::size_t processes_;
  std::size_t first_ = 0;  ///< the first layer that exchanges
  std::size_t last_ = 0;
  std::vector<double> before_;  ///< how often each kind's parts lie between first and last
  std::vector<double> after_;
  /// Messages from the first layer's to the last one's, that excluded: they follow one another on a
  /// link, and a process waits for them with SendOrder::Block.
  double messages_ = 0;
  double message_bytes_per_token_ = 0;
  simulate::ProcessTimes times_;
};

}  // namespace kvcast::search
