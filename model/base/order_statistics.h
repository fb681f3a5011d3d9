/// Quantiles of measured values.
#pragma once

#include <vector>

namespace kvcast {

/// `share` of the way from the smallest to the largest of at least one value, linear between
/// neighbours.
double quantile(std::vector<double> values, double share);
/// The middle one, or half of the sum of the two.
double median(std::vector<double> values);

}  // namespace kvcast
