#include "model/execute/vector_math.h"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "model/execute/positions.h"

namespace kvcast::execute {
namespace {

/// Largest difference from a float64 function over [-12, 12], by the larger of 1 and its value.
template <typename Fast, typename Exact>
double largest_error(Fast fast, Exact exact) {
  double largest = 0;
  for (int i = -12000; i <= 12000; ++i) {
    const float x = static_cast<float>(i) / 1000;
    const double y = exact(static_cast<double>(x));
    largest = std::max(largest, std::abs(fast(x) - y) / std::max(1.0, std::abs(y)));
  }
  return largest;
}

TEST_CASE("vector math: within a few fp32 roundings of the float64 library") {
  const double tolerance = 1e-6;
  CHECK(largest_error([](float x) { return vector_exp(x); }, [](double x) { return std::exp(x); }) <
        tolerance);
  CHECK(largest_error([](float x) { return vector_tanh(x); },
                      [](double x) { return std::tanh(x); }) < tolerance);
  CHECK(largest_error([](float x) { return vector_silu(x); },
                      [](double x) { return x / (1 + std::exp(-x)); }) < tolerance);
  CHECK(largest_error([](float x) { return vector_gelu(x); },
                      [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2)); }) < tolerance);
  CHECK(largest_error([](float x) { return vector_gelu_tanh(x); },
                      [](double x) {
                        const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
                        return x / 2 * (1 + std::tanh(inner));
                      }) < tolerance);
}

// bf16 has 8 significant bits: from 256 to 512 every second whole number, halfway to the even one.
TEST_CASE("alibi: the key's index and its product are rounded to bf16") {
  CHECK(alibi_bias(0.5F, 255) == 127.5F);
  CHECK(alibi_bias(0.5F, 257) == 128);
  CHECK(alibi_bias(0.5F, 259) == 130);
  // 0.7109375 is 0b0.1011011; times 3 it is 2.1328125, between the bf16 neighbours 2.125 and
  // 2.140625 and halfway: 2.125 has the even last bit.
  CHECK(alibi_bias(0.7109375F, 3) == 2.125F);
}

}  // namespace
}  // namespace kvcast::execute
