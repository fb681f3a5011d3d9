/// Which of several choices nothing else beats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace kvcast {

/// Whether one choice is nowhere worse than another and somewhere better, less being better. Both
/// have equally many costs. A cost of NaN neither beats nor is beaten.
inline bool beats(std::span<const double> one, std::span<const double> other) {
  bool better = false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (!(one[i] <= other[i])) return false;
    better = better || one[i] < other[i];
  }
  return better;
}

/// For each choice one on the front that beats it; none where it is on the front itself. All have
/// equally many costs, none of them NaN.
inline std::vector<std::optional<std::size_t>> beaten_by(
    const std::vector<std::vector<double>>& costs) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // What beats a choice comes before it.
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return costs[a] < costs[b]; });
  std::vector<std::optional<std::size_t>> by(costs.size());
  std::vector<std::size_t> front;
  for (const std::size_t i : order) {
    const auto better = std::find_if(front.begin(), front.end(), [&](std::size_t other) {
      return beats(costs[other], costs[i]);
    });
    if (better != front.end()) {
      by[i] = *better;
    } else {
      front.push_back(i);
    }
  }
  return by;
}

}  // namespace kvcast
