#include "model/execute/block_product.h"

#include "model/execute/row_loops.h"
#include "model/execute/vector_lanes.h"

namespace kvcast::execute {
namespace {

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

/// Dot products of `rows` rows of A and 4 of B.
template <std::size_t rows>
KVCAST_INLINE void dot_tile(const Product& p, std::size_t row, std::size_t column) {
  constexpr std::size_t columns = 4;
  const std::size_t whole = p.k / vector_width * vector_width;
  const float* a = p.a + row * p.lda;
  const float* b = p.b + column * p.ldb;
  Vector sums[rows][columns] = {};
  for (std::size_t k = 0; k < whole; k += vector_width) {
    Vector loaded[columns];
    for (std::size_t c = 0; c < columns; ++c) {
      loaded[c] = *reinterpret_cast<const Vector*>(b + c * p.ldb + k);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const Vector x = *reinterpret_cast<const Vector*>(a + r * p.lda + k);
      for (std::size_t c = 0; c < columns; ++c) sums[r][c] += x * loaded[c];
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    const Quarter four = lane_sums(sums[r]);
    for (std::size_t c = 0; c < columns; ++c) {
      float sum = four[c];
      for (std::size_t k = whole; k < p.k; ++k) sum += a[r * p.lda + k] * b[c * p.ldb + k];
      p.c[(row + r) * p.ldc + column + c] = sum;
    }
  }
}

template <std::size_t rows>
KVCAST_INLINE void row_of_dots(const Product& p, std::size_t row) {
  std::size_t column = 0;
  for (; column + 4 <= p.n; column += 4) dot_tile<rows>(p, row, column);
  for (; column < p.n; ++column) {
    for (std::size_t r = row; r < row + rows; ++r) {
      p.c[r * p.ldc + column] = dot_row(p.a + r * p.lda, p.b + column * p.ldb, p.k);
    }
  }
}

}  // namespace

KVCAST_VECTOR_CLONES void multiply_block_transposed(const Product& p) {
  std::size_t row = 0;
  for (; row + block_rows <= p.m; row += block_rows) row_of_dots<block_rows>(p, row);
  switch (p.m - row) {
    case 1: return row_of_dots<1>(p, row);
    case 2: return row_of_dots<2>(p, row);
    case 3: return row_of_dots<3>(p, row);
    case 4: return row_of_dots<4>(p, row);
    case 5: return row_of_dots<5>(p, row);
    default: return;
  }
}

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
