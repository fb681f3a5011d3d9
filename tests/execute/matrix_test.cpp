#include "model/execute/matrix.h"

#include <algorithm>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/arena.h"
#include "tests/execute/whole_numbers.h"

namespace kvcast::execute {
namespace {

struct Weight {
  std::size_t out;
  std::size_t in;
  std::vector<float> rows = whole_numbers(out * in, 1);
  std::vector<float> bias = whole_numbers(out, 2);

  Matrix matrix(FloatStore& store) const {
    return {out, in,
            [this](std::size_t first, std::span<float> some) {
              std::copy_n(rows.data() + first * in, some.size(), some.data());
            },
            store};
  }
  /// One row of the product; `x` has `in` numbers.
  std::vector<float> of(const float* x, bool with_bias) const {
    std::vector<float> y(out);
    for (std::size_t o = 0; o < out; ++o) {
      y[o] = with_bias ? bias[o] : 0;
      for (std::size_t i = 0; i < in; ++i) y[o] += rows[o * in + i] * x[i];
    }
    return y;
  }
};

// About a vector, a panel, a tile's inputs; rows that are streamed, and more.
TEST_CASE(
    "matrix: products of all sizes are those of a plain loop, nothing is written after them") {
  for (const std::size_t out : {1u, 15u, 16u, 17u, 64u, 65u, 200u}) {
    for (const std::size_t in : {1u, 15u, 17u, 384u, 385u, 800u}) {
      const Weight weight{out, in};
      FloatStore store;
      const Matrix matrix = weight.matrix(store);
      CHECK(matrix.bytes() >= out * in * sizeof(float));
      for (const std::size_t rows : {1u, 6u, 7u, 13u, 24u, 25u, 50u}) {
        const std::vector<float> x = whole_numbers(rows * in, 3);
        for (const bool bias : {false, true}) {
          std::vector<float> y(rows * out + 1, 0.5F);
          matrix.multiply(x.data(), rows, y.data(), bias ? weight.bias.data() : nullptr);
          std::size_t equal = 0;
          for (std::size_t r = 0; r < rows; ++r) {
            equal +=
                std::ranges::equal(weight.of(&x[r * in], bias), std::span(y).subspan(r * out, out));
          }
          CAPTURE(out);
          CAPTURE(in);
          CAPTURE(rows);
          CHECK(equal == rows);
          CHECK(y.back() == 0.5F);
        }
      }
    }
  }
}

TEST_CASE("matrix: rows of windows may overlap") {
  const Weight weight{70, 400};
  FloatStore store;
  const Matrix matrix = weight.matrix(store);
  const std::size_t step = 160;
  for (const std::size_t rows : {1u, 24u, 31u}) {
    const std::vector<float> x = whole_numbers((rows - 1) * step + weight.in, 3);
    std::vector<float> y(rows * weight.out);
    matrix.multiply_windows(x.data(), step, rows, y.data(), weight.bias.data());
    for (std::size_t r = 0; r < rows; ++r) {
      CHECK(std::ranges::equal(weight.of(&x[r * step], true),
                               std::span(y).subspan(r * weight.out, weight.out)));
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
