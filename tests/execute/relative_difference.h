/// How far two lists of numbers are apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace kvcast::execute {

template <typename N>
double relative_difference_of(std::span<const N> ours, std::span<const N> expected) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  if (ours.size() != expected.size() || expected.empty()) return infinite;
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(static_cast<double>(ours[i]) - expected[i]);
    if (!std::isfinite(difference)) return infinite;
    largest = std::max(largest, difference);
  }
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  return largest / (static_cast<double>(*high) - *low);
}

/// The largest difference as a share of the range of `expected`; infinite when the lists differ in
/// length, are empty, or hold anything but finite numbers.
inline double relative_difference(std::span<const float> ours, std::span<const float> expected) {
  return relative_difference_of(ours, expected);
}
inline double relative_difference(std::span<const double> ours, std::span<const double> expected) {
  return relative_difference_of(ours, expected);
}

}  // namespace kvcast::execute
