/// A certificate for a partition search: a TTFT that no partition can beat.
///
/// The boundaries of the partition lie in ranges. The smallest parts and the shortest messages that
/// the ranges leave give the earliest moment of everything that happens on the chain; what must
/// follow it gives the latest moment at which a TTFT of T can still be met. A boundary at which the
/// two cross is cut off, which narrows the ranges of the others. Where nothing is left, no
/// partition reaches T. Ranges that stay wide are halved, and each half has to be refuted.
///
/// This holds because a rank's times grow with its tokens and with its keys, and because a message
/// cannot arrive sooner when those before it start later. Messages that share a link may end sooner
/// when later ones start later; for them the bound counts only the bytes of those before, and is
/// wide where the link is slow.
#pragma once

#include <cstdint>
#include <span>
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
  /// Throws Error when there are no ranks or fewer tokens than ranks.
  PartitionBound(const Runahead& runahead, std::uint64_t prompt_len, std::size_t ranks);

  BoundaryRanges ranges(double ttft_s);
  /// The largest T found infeasible, to within a relative 1e-6, or where ranges are halved to
  /// within the work allowed for that; `reached`: of some partition.
  double lower_bound_s(double reached);

 private:
  BoundaryRanges all() const;
  void narrow(double ttft_s, BoundaryRanges& r);
  /// Both return whether any bound moved, and clear `feasible`.
  bool narrow_forward(double ttft_s, BoundaryRanges& r);
  bool narrow_backward(double ttft_s, BoundaryRanges& r);
  /// Whether no partition in the ranges reaches T; false also when `halvings` run out.
  bool refuted(double ttft_s, BoundaryRanges r, int& halvings);

  // Both take a rank by its tokens and by the `keys` at which its part ends.
  /// Whether the rank and its messages can be in time. Sets `sent_`, the earliest arrivals; of
  /// messages that share a link when the link can have moved all up to this one.
  bool in_time(std::size_t rank, std::uint64_t tokens, std::uint64_t keys, double ttft_s);
  /// The latest moments for its keys and values to be ready.
  void set_deadlines(std::size_t rank, std::uint64_t tokens, std::uint64_t keys, double ttft_s);
  /// When a rank may send at the latest: its message takes `moving_s` and is needed at `needed`;
  /// its own computing after the message begins at `compute`. Moves `link_end`, by which the link
  /// must have moved the messages before.
  double latest_send(double compute, double needed, double moving_s, double& link_end) const;
  std::span<double> row(std::vector<double>& of_all, std::size_t rank) const {
    return {of_all.data() + rank * chain_.kinds.size(), chain_.kinds.size()};
  }

  const Runahead& runahead_;
  std::uint64_t prompt_len_;
  std::size_t ranks_;
  const Chain chain_;
  simulate::RankTimes times_;
  // By rank and layer.
  std::vector<double> arrivals_;   ///< earliest, of what a rank receives
  std::vector<double> deadlines_;  ///< latest for keys and values to be ready, or T is missed
  // By layer.
  std::vector<double> ready_;
  std::vector<double> sent_;
};

}  // namespace kvcast::search
