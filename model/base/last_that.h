/// Bisection.
#pragma once

#include <cstdint>

namespace kvcast {

/// The largest value in [low, high] that `holds`, which is true up to it; low - 1 if none.
template <typename Holds>
std::uint64_t last_that(std::uint64_t low, std::uint64_t high, const Holds& holds) {
  if (low <= high && holds(high)) return high;
  std::uint64_t below = low - 1;
  while (below < high) {
    const std::uint64_t middle = below + (high - below + 1) / 2;
    if (holds(middle)) {
      below = middle;
    } else {
      high = middle - 1;
    }
  }
  return below;
}

}  // namespace kvcast
