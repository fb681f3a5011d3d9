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

}  // namespace kvcast
