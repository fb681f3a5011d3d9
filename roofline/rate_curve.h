/// A rate that depends on the length of the rows that a kernel works through.
#pragma once

#include <utility>
#include <vector>

#include "roofline/hardware.h"

namespace kvcast::roofline {

class RateCurve {
 public:
  /// The same at every length.
  RateCurve() = default;
  /// `points`: see Sourced::by_length; `value`: what the rate is without a length.
  RateCurve(const std::vector<FactorAt>& points, double value);
  /// The relative rates at these lengths, which ascend.
  RateCurve(std::vector<double> lengths, std::vector<double> rates)
      : lengths_(std::move(lengths)), rates_(std::move(rates)) {}

  bool is_flat() const { return lengths_.empty(); }
  /// The rate relative to that without a length: linear between measured lengths, constant beyond
  /// the shortest and the longest.
  double at(double length) const;
  bool operator==(const RateCurve&) const = default;

 private:
  std::vector<double> lengths_;
  std::vector<double> rates_;
};

}  // namespace kvcast::roofline
