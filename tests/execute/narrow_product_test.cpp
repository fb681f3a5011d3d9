#include "model/execute/narrow_product.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include "model/execute/machine_probe.h"
#include "model/execute/matrix.h"
#include "model/execute/stored_blocks.h"
#include "tests/execute/stored_weight.h"
#include "tests/execute/whole_numbers.h"

namespace kvcast::execute {
namespace {

/// To the eight bits of bf16's significand, ties to even. Not for subnormal numbers.
double as_bf16(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

/// Quarters of up to 127, with one of that size in each group of 16 numbers: what INT8 rounds them
/// to are whole numbers.
std::vector<float> rows_of_quarters(std::size_t count, std::size_t in) {
  std::vector<float> x = whole_numbers(count * in, 3);
  const std::vector<float> more = whole_numbers(count * in, 4);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 14 * x[i] + more[i] + 0.25F * static_cast<float>(i % 4);
    if (i % in % 16 == 5) x[i] = i % 3 == 0 ? -127.0F : 127.0F;
  }
  return x;
}

/// One row's number as a product sees it.
double rounded(Arithmetic arithmetic, double x) {
  if (arithmetic == Arithmetic::FP32) return x;
  return arithmetic == Arithmetic::BF16 ? as_bf16(x) : std::nearbyint(x);
}

std::vector<float> multiply(const Matrix& m, const std::vector<float>& x, std::size_t rows,
                            std::size_t out) {
  std::vector<float> y(rows * out + 1, 0.5F);
  m.multiply(x.data(), rows, y.data(), nullptr);
  CHECK(y.back() == 0.5F);  // nothing is written after them
  y.pop_back();
  return y;
}

/// The largest difference between a product and the sum in fp64 of rounded numbers, as a share of
/// what sums in fp32 may be off.
double worst_difference(const Matrix& m, Arithmetic arithmetic, const std::vector<float>& numbers,
                        std::size_t out, std::size_t in, std::size_t rows) {
  const std::vector<float> x = rows_of_quarters(rows, in);
  const std::vector<float> y = multiply(m, x, rows, out);
  // One row meets bf16 weights in fp32.
  const bool narrow_weights = arithmetic == Arithmetic::BF16 && rows > 1;
  const Arithmetic of_rows =
      rows == 1 && arithmetic == Arithmetic::BF16 ? Arithmetic::FP32 : arithmetic;
  double largest = 0;
  for (const float w : numbers) largest = std::max<double>(largest, std::abs(w));
  std::vector<double> weights(numbers.begin(), numbers.end());
  if (narrow_weights) std::transform(weights.begin(), weights.end(), weights.begin(), as_bf16);
  double worst = 0;
  std::vector<double> row(in);
  for (std::size_t r = 0; r < rows; ++r) {
    double sum_of_x = 0;
    for (std::size_t i = 0; i < in; ++i) {
      sum_of_x += std::abs(x[r * in + i]);
      row[i] = rounded(of_rows, x[r * in + i]);
    }
    // Each of in + 16 additions rounds a sum of at most three times the largest numbers: a scaled
    // number and its minimum may be twice as large as what they add up to.
    const double bound = std::ldexp(static_cast<double>(in + 16) * 3 * largest * sum_of_x, -24);
    for (std::size_t o = 0; o < out; ++o) {
      const double* const w = &weights[o * in];
      const double sum = std::inner_product(row.begin(), row.end(), w, 0.0);
      worst = std::max(worst, std::abs(y[r * out + o] - sum) / bound);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("narrow_product: products are sums of rounded numbers, within the rounding of fp32") {
  for (const DType dtype : all_types()) {
    for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
      for (const std::size_t out : output_sizes(dtype)) {
        for (const std::size_t in : input_sizes(dtype)) {
          const StoredWeight w(out, in, dtype);
          FloatStore store;
          const Matrix m = w.matrix(store, arithmetic);
          const bool whole = has_bytes(dtype);
          CHECK((m.arithmetic() == arithmetic) == (arithmetic == Arithmetic::BF16 || whole));
          for (const std::size_t rows : {1u, 7u, 24u, 61u}) {
            CAPTURE(name(dtype));
            CAPTURE(static_cast<int>(arithmetic));
            CAPTURE(out);
            CAPTURE(in);
            CAPTURE(rows);
            CHECK(worst_difference(m, m.arithmetic(), w.numbers, out, in, rows) <= 1);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "narrow_product: weights in fp32 are rounded too, and never multiplied as whole numbers") {
  for (const std::size_t in : {1u, 15u, 33u, 130u, 801u}) {
    constexpr std::size_t out = 70;
    std::vector<float> numbers = whole_numbers(out * in, 9);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] += 0.001F * static_cast<float>(i % 101);
    }
    const auto fill = [&](std::size_t first, std::span<float> rows) {
      std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(first * in), rows.size(),
                  rows.begin());
    };
    for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
      FloatStore store;
      const Matrix m(out, in, fill, store, arithmetic);
      CHECK(m.arithmetic() == (arithmetic == Arithmetic::BF16 ? arithmetic : Arithmetic::FP32));
      for (const std::size_t rows : {1u, 3u, 24u, 61u}) {
        CHECK(worst_difference(m, m.arithmetic(), numbers, out, in, rows) <= 1);
      }
    }
  }
}

TEST_CASE("narrow_product: many rows, whose weights are unpacked for some of them at a time") {
  for (const DType dtype : {DType::BF16, DType::Q4_K, DType::Q8_0}) {
    const StoredWeight w(64, 1024, dtype);
    FloatStore store;
    for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
      const Matrix m = w.matrix(store, arithmetic);
      CHECK(worst_difference(m, m.arithmetic(), w.numbers, w.out, w.in, 1100) <= 1);
    }
  }
}

TEST_CASE("narrow_product: windows of a row overlap") {
  constexpr std::size_t in = 64;
  constexpr std::size_t step = 24;
  const StoredWeight w(20, in, DType::Q8_0);
  const std::vector<float> all = rows_of_quarters(1, 40 * step + in);
  std::vector<float> apart;
  for (std::size_t r = 0; r < 40; ++r) {
    apart.insert(apart.end(), &all[r * step], &all[r * step] + in);
  }
  for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
    FloatStore store;
    const Matrix m = w.matrix(store, arithmetic);
    for (const std::size_t rows : {2u, 40u}) {
      std::vector<float> y(rows * w.out);
      m.multiply_windows(all.data(), step, rows, y.data(), nullptr);
      CHECK(y == multiply(m, apart, rows, w.out));
    }
  }
}

TEST_CASE("narrow_product: one, two and three threads give the same numbers, to the last bit") {
  const int before = use_threads(0);
  for (const DType dtype : {DType::BF16, DType::Q5_K, DType::Q6_K}) {
    const StoredWeight w(130, 768, dtype);
    for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
      FloatStore store;
      const Matrix m = w.matrix(store, arithmetic);
      for (const std::size_t rows : {1u, 5u, 200u}) {
        const std::vector<float> x = rows_of_quarters(rows, w.in);
        use_threads(1);
        const std::vector<float> one = multiply(m, x, rows, w.out);
        for (const int threads : {2, 3}) {
          use_threads(threads);
          CAPTURE(name(dtype));
          CAPTURE(static_cast<int>(arithmetic));
          CAPTURE(rows);
          CAPTURE(threads);
          CHECK(multiply(m, x, rows, w.out) == one);
        }
      }
    }
  }
  use_threads(before);
}

TEST_CASE("narrow_product: a number that is not finite spoils its row and no other") {
  const StoredWeight w(20, 64, DType::Q8_0);
  for (const Arithmetic arithmetic : {Arithmetic::BF16, Arithmetic::INT8}) {
    FloatStore store;
    const Matrix m = w.matrix(store, arithmetic);
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            std::bit_cast<float>(0x7fffffffu), std::bit_cast<float>(0xffffffffu)}) {
      std::vector<float> x = rows_of_quarters(3, w.in);
      const std::vector<float> sound = multiply(m, x, 3, w.out);
      x[w.in + 33] = bad;
      const std::vector<float> y = multiply(m, x, 3, w.out);
      for (std::size_t o = 0; o < w.out; ++o) {
        CHECK(y[o] == sound[o]);
        CHECK(!std::isfinite(y[w.out + o]));
        CHECK(y[2 * w.out + o] == sound[2 * w.out + o]);
      }
    }
  }
}

}  // namespace kvcast::execute
