#include "model/execute/block_product.h"

#include <vector>

#include <doctest/doctest.h>

#include "tests/execute/whole_numbers.h"

namespace kvcast::execute {
namespace {

TEST_CASE("block product: C = A Bt of all sizes about a tile and a vector, and nothing beside it") {
  for (std::size_t m = 1; m <= 2 * block_rows + 1; ++m) {
    for (const std::size_t n : {1u, 3u, 4u, 7u, 9u}) {
      for (const std::size_t k : {1u, 15u, 16u, 17u, 40u}) {
        const std::size_t lda = k + 2;
        const std::size_t ldb = k + 3;
        const std::size_t ldc = n + 1;
        const std::vector<float> a = whole_numbers(m * lda, 1);
        const std::vector<float> b = whole_numbers(n * ldb, 2);
        std::vector<float> c(m * ldc, 0.5F);
        multiply_block_transposed({m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc});
        for (std::size_t row = 0; row < m; ++row) {
          for (std::size_t column = 0; column < n; ++column) {
            float sum = 0;
            for (std::size_t i = 0; i < k; ++i) sum += a[row * lda + i] * b[column * ldb + i];
            CHECK(c[row * ldc + column] == sum);
          }
          CHECK(c[row * ldc + n] == 0.5F);
        }
      }
    }
  }
}

TEST_CASE("block product: C = A B and C += A B of all numbers of rows and vectors") {
  for (std::size_t m = 1; m <= 2 * block_rows + 1; ++m) {
    for (std::size_t n = vector_width; n <= 9 * vector_width; n += vector_width) {
      for (const std::size_t k : {1u, 5u, 17u}) {
        const std::size_t lda = k + 2;
        const std::size_t ldb = n + 3;
        const std::size_t ldc = n + 1;
        const std::vector<float> a = whole_numbers(m * lda, 1);
        const std::vector<float> b = whole_numbers(k * ldb, 2);
        for (const bool accumulate : {false, true}) {
          std::vector<float> c(m * ldc, 0.5F);
          multiply_block({m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc}, accumulate);
          for (std::size_t row = 0; row < m; ++row) {
            for (std::size_t column = 0; column < n; ++column) {
              float sum = accumulate ? 0.5F : 0.0F;
              for (std::size_t i = 0; i < k; ++i) sum += a[row * lda + i] * b[i * ldb + column];
              REQUIRE(c[row * ldc + column] == sum);
            }
            REQUIRE(c[row * ldc + n] == 0.5F);
          }
        }
      }
    }
  }
}

TEST_CASE("block product: rows as columns, zeros after the last") {
  // Squares of 16, 8 and 4, and what is left of them.
  const std::size_t columns = 37;
  for (const std::size_t step : {columns, columns + 3}) {
    for (std::size_t n = 1; n <= columns; ++n) {
      for (std::size_t k = 1; k <= 37; ++k) {
        const std::size_t ldb = k + 3;
        const std::vector<float> b = whole_numbers(n * ldb, 1);
        std::vector<float> out(k * step + 1, 0.5F);
        transpose_block(b.data(), ldb, n, k, out.data(), columns, step);
        for (std::size_t i = 0; i < k; ++i) {
          for (std::size_t j = 0; j < step; ++j) {
            const float expected = j < n ? b[j * ldb + i] : j < columns ? 0 : 0.5F;
            REQUIRE(out[i * step + j] == expected);
          }
        }
        REQUIRE(out.back() == 0.5F);
      }
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
