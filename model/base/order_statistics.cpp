#include "model/base/order_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "model/base/error.h"

namespace kvcast {

double quantile(std::vector<double> values, double share) {
  KVCAST_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

double median(std::vector<double> values) {
  KVCAST_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double expected_largest_normal(std::uint64_t n) {
  // The mean is what stands above the distribution function of the largest, right of 0, less what
  // is below it on the left. The integrand is smooth and even, so midpoints converge fast.
  constexpr double step = 1e-2;
  constexpr int steps = 1000;  // to 10 standard deviations
  const auto below = [n](double x) {
    return std::pow(std::erfc(-x / std::sqrt(2.0)) / 2, static_cast<double>(n));
  };
  double mean = 0;
  for (int i = 0; i < steps; ++i) {
    const double x = (i + 0.5) * step;
    mean += (1 - below(x) - below(-x)) * step;
  }
  return mean;
}

}  // namespace kvcast
