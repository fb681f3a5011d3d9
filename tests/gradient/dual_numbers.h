/// Numbers with a derivative along one direction, for the plain loops: what they compute is
/// differentiated exactly, without a step size.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "model/execute/counted_numbers.h"
#include "model/execute/positions.h"

namespace kvcast::execute {

struct Dual {
  double value = 0;
  double tangent = 0;

  constexpr Dual(double v = 0, double t = 0) : value(v), tangent(t) {}
  explicit operator std::size_t() const { return static_cast<std::size_t>(value); }

  friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.tangent + b.tangent}; }
  friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.tangent - b.tangent}; }
  friend Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.tangent * b.value + a.value * b.tangent};
  }
  friend Dual operator/(Dual a, Dual b) {
    const double ratio = a.value / b.value;
    return {ratio, (a.tangent - ratio * b.tangent) / b.value};
  }
  friend Dual operator-(Dual a) { return {-a.value, -a.tangent}; }
  friend bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend bool operator>=(Dual a, Dual b) { return a.value >= b.value; }

  friend Dual abs(Dual a) { return a.value < 0 ? -a : a; }
  friend Dual exp(Dual a) { return {std::exp(a.value), std::exp(a.value) * a.tangent}; }
  friend Dual softplus(Dual a) {
    return {std::log1p(std::exp(a.value)), a.tangent / (1 + std::exp(-a.value))};
  }
  friend Dual log(Dual a) { return {std::log(a.value), a.tangent / a.value}; }
  friend Dual sqrt(Dual a) {
    return {std::sqrt(a.value), a.tangent == 0 ? 0 : a.tangent / (2 * std::sqrt(a.value))};
  }
  friend Dual tanh(Dual a) {
    const double cosh = std::cosh(a.value);
    return {std::tanh(a.value), a.tangent / (cosh * cosh)};
  }
  friend Dual erf(Dual a) {
    constexpr double slope = 1.1283791670955126;  // 2/√π
    return {std::erf(a.value), slope * std::exp(-a.value * a.value) * a.tangent};
  }
};

template <>
struct AngleNumber<Dual> {
  using Type = double;
};

/// The choice does not change with the numbers' tangents.
template <>
inline std::vector<std::size_t> chosen_experts(std::span<const Dual> scores,
                                               const Routing& routing) {
  std::vector<double> values;
  for (const Dual& score : scores) values.push_back(score.value);
  return chosen_experts<double>(values, routing);
}

}  // namespace kvcast::execute
