/// Which of several choices nothing else beats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <vector>

namespace kvcast {

/// For each choice one on the front that is nowhere worse and somewhere better, less being better;
/// none where it is on the front itself. All have equally many costs, none of them NaN.
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
      return costs[other] != costs[i] &&
             std::equal(costs[other].begin(), costs[other].end(), costs[i].begin(),
                        [](double theirs, double own) { return theirs <= own; });
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
