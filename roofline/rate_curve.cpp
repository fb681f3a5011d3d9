#include "roofline/rate_curve.h"

#include <algorithm>

namespace kvcast::roofline {

RateCurve::RateCurve(const std::vector<FactorAt>& points, double value) {
  for (const FactorAt& point : points) {
    lengths_.push_back(static_cast<double>(point.length));
    rates_.push_back(point.value / value);
  }
}

double RateCurve::at(double length) const {
  if (is_flat()) return 1;
  const auto above = std::upper_bound(lengths_.begin(), lengths_.end(), length);
  if (above == lengths_.begin()) return rates_.front();
  if (above == lengths_.end()) return rates_.back();
  const auto i = static_cast<std::size_t>(above - lengths_.begin());
  const double share = (length - lengths_[i - 1]) / (lengths_[i] - lengths_[i - 1]);
  return rates_[i - 1] + share * (rates_[i] - rates_[i - 1]);
}

}  // namespace kvcast::roofline
