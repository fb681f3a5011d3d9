#include "model/execute/block_product.h"

#include "model/execute/vector_math.h"

namespace kvcast::execute {
namespace {

typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));

/// One tile of C in registers: `rows` times `vectors`·16 numbers.
template <std::size_t rows, std::size_t vectors>
KVCAST_INLINE void tile(const Product& p, bool accumulate, std::size_t row, std::size_t column) {
  Vector sums[rows][vectors];
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      const float* c = p.c + (row + r) * p.ldc + column + v * vector_width;
      sums[r][v] = accumulate ? *reinterpret_cast<const Vector*>(c) : Vector{};
    }
  }
  const float* a = p.a + row * p.lda;
  const float* b = p.b + column;
  for (std::size_t k = 0; k < p.k; ++k) {
    Vector loaded[vectors];
    for (std::size_t v = 0; v < vectors; ++v) {
      loaded[v] = *reinterpret_cast<const Vector*>(b + k * p.ldb + v * vector_width);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const float factor = a[r * p.lda + k];
      for (std::size_t v = 0; v < vectors; ++v) sums[r][v] += factor * loaded[v];
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      float* c = p.c + (row + r) * p.ldc + column + v * vector_width;
      *reinterpret_cast<Vector*>(c) = sums[r][v];
    }
  }
}

template <std::size_t rows>
KVCAST_INLINE void row_of_tiles(const Product& p, bool accumulate, std::size_t row) {
  std::size_t column = 0;
  for (; column + 4 * vector_width <= p.n; column += 4 * vector_width)
    tile<rows, 4>(p, accumulate, row, column);
  switch ((p.n - column) / vector_width) {
    case 1: return tile<rows, 1>(p, accumulate, row, column);
    case 2: return tile<rows, 2>(p, accumulate, row, column);
    case 3: return tile<rows, 3>(p, accumulate, row, column);
    default: return;
  }
}

}  // namespace

KVCAST_VECTOR_CLONES void multiply_block(const Product& p, bool accumulate) {
  std::size_t row = 0;
  for (; row + block_rows <= p.m; row += block_rows) row_of_tiles<block_rows>(p, accumulate, row);
  switch (p.m - row) {
    case 1: return row_of_tiles<1>(p, accumulate, row);
    case 2: return row_of_tiles<2>(p, accumulate, row);
    case 3: return row_of_tiles<3>(p, accumulate, row);
    case 4: return row_of_tiles<4>(p, accumulate, row);
    case 5: return row_of_tiles<5>(p, accumulate, row);
    default: return;
  }
}

}  // namespace kvcast::execute
