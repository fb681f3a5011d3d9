#include "simulate/serving/distributions.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace kvcast::simulate {
namespace {

// Terms of the series, so many that the next is below a rounding.
constexpr int log_terms = 11;  // (3 - 2 sqrt(2))^22 / 23 < 2^-59
constexpr int exp_terms = 15;  // (ln(2) / 2)^16 / 16! < 2^-68

// Beyond, the result is 0 or infinite.
constexpr double least_exponent = -746;
constexpr double most_exponent = 710;

/// Above 0, at most 1: its logarithm is finite.
double positive_uniform(Random& random) { return 1 - random.uniform(); }

}  // namespace

double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2;
    --exponent;
  }
  // log(m) = 2 artanh(s), |s| <= 3 - 2 sqrt(2)
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = log_terms - 1; k >= 0; --k) sum = sum * (s * s) + 1.0 / (2 * k + 1);
  return exponent * std::numbers::ln2 + 2 * s * sum;
}

double portable_exp(double x) {
  if (x < least_exponent) return 0;
  if (x > most_exponent) return std::numeric_limits<double>::infinity();
  const double k = std::floor(x / std::numbers::ln2 + 0.5);
  const double r = x - k * std::numbers::ln2;
  double sum = 1;
  for (int n = exp_terms; n >= 1; --n) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

double exponential(Random& random) { return -portable_log(positive_uniform(random)); }

double normal(Random& random) {
  for (;;) {
    const double x = 2 * random.uniform() - 1;
    const double y = 2 * random.uniform() - 1;
    const double square = x * x + y * y;
    if (square > 0 && square < 1) return x * std::sqrt(-2 * portable_log(square) / square);
  }
}

double gamma(Random& random, double shape) {
  if (shape < 1) {
    const double above = gamma(random, shape + 1);
    return above * portable_exp(portable_log(positive_uniform(random)) / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double log_u = portable_log(positive_uniform(random));
    if (log_u < 0.5 * x * x + d - d * v + d * portable_log(v)) return d * v;
  }
}

}  // namespace kvcast::simulate
