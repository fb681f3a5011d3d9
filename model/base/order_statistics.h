/// Quantiles of measured values, and the largest of drawn ones.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcast {

/// `share` of the way from the smallest to the largest of at least one value, linear between
/// neighbours.
double quantile(std::vector<double> values, double share);
/// The middle one, or half of the sum of the two.
double median(std::vector<double> values);

/// The expected largest of n draws, at least one, from the standard normal distribution.
double expected_largest_normal(std::uint64_t n);

}  // namespace kvcast
