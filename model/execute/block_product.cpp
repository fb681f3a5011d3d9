#include "model/execute/block_product.h"

#include <algorithm>
#include <utility>

#include "model/execute/row_loops.h"
#include "model/execute/vector_lanes.h"

namespace kvcast::execute {
namespace {

/// Tiles that leave registers for what is multiplied: of 32 with 16 lanes, else of 16.
template <std::size_t lanes>
constexpr std::size_t tile_vectors = lanes == 16 ? 4 : 2;
/// Rows of B that are on their way to the first-level cache while one is multiplied. On a Sapphire
/// Rapids core with its panel in the second-level cache 4 to 16 rows raise the rate by 3 to 11 %.
constexpr std::size_t rows_ahead = 16;
template <std::size_t lanes>
constexpr std::size_t dot_rows = lanes == 16 ? block_rows : 3;

/// What comes to the second-level cache while tiles are multiplied, so many numbers with each row
/// of B.
struct Ahead {
  const float* at;
  std::size_t step;
};

/// One tile of C in registers: `rows` times `vectors` vectors.
template <std::size_t lanes, std::size_t rows, std::size_t vectors>
KVCAST_INLINE void multiply_tile(const Product& p, bool accumulate, std::size_t row,
                                 std::size_t column, Ahead ahead) {
  using V = Vector<lanes>;
  V sums[rows][vectors];
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      const float* c = p.c + (row + r) * p.ldc + column + v * lanes;
      sums[r][v] = accumulate ? *reinterpret_cast<const V*>(c) : V{};
      // On its way while the products are summed.
      if (!accumulate) __builtin_prefetch(c, 1);
    }
  }
  const float* a = p.a + row * p.lda;
  const float* b = p.b + column;
  for (std::size_t k = 0; k < p.k; ++k, ahead.at += ahead.step) {
    __builtin_prefetch(ahead.at, 0, 2);
    V loaded[vectors];
    for (std::size_t v = 0; v < vectors; ++v) {
      loaded[v] = *reinterpret_cast<const V*>(b + k * p.ldb + v * lanes);
      __builtin_prefetch(b + (k + rows_ahead) * p.ldb + v * lanes);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const float factor = a[r * p.lda + k];
      for (std::size_t v = 0; v < vectors; ++v) sums[r][v] += factor * loaded[v];
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < vectors; ++v) {
      float* c = p.c + (row + r) * p.ldc + column + v * lanes;
      *reinterpret_cast<V*>(c) = sums[r][v];
    }
  }
}

/// Tiles of `vectors` vectors from a column on, then narrower ones.
template <std::size_t lanes, std::size_t rows, std::size_t vectors>
KVCAST_INLINE void row_of_tiles(const Product& p, bool accumulate, std::size_t row,
                                std::size_t column, Ahead ahead) {
  for (; column + vectors * lanes <= p.n; column += vectors * lanes) {
    multiply_tile<lanes, rows, vectors>(p, accumulate, row, column, ahead);
  }
  if constexpr (vectors > 1) {
    row_of_tiles<lanes, rows, vectors - 1>(p, accumulate, row, column, ahead);
  }
}

/// A row of tiles of `wanted` rows, at most `rows`.
template <std::size_t lanes, std::size_t rows>
KVCAST_INLINE void tiles_of_rows(const Product& p, bool accumulate, std::size_t row,
                                 std::size_t wanted, Ahead ahead) {
  if (wanted == rows) {
    return row_of_tiles<lanes, rows, tile_vectors<lanes>>(p, accumulate, row, 0, ahead);
  }
  if constexpr (rows > 1) tiles_of_rows<lanes, rows - 1>(p, accumulate, row, wanted, ahead);
}

/// Dot products of `rows` rows of A and 4 of B.
template <std::size_t lanes, std::size_t rows>
KVCAST_INLINE void dot_tile(const Product& p, std::size_t row, std::size_t column) {
  using V = Vector<lanes>;
  constexpr std::size_t columns = 4;
  const std::size_t whole = p.k / lanes * lanes;
  const float* a = p.a + row * p.lda;
  const float* b = p.b + column * p.ldb;
  V sums[rows][columns];
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) sums[r][c] = V{};
  }
  for (std::size_t k = 0; k < whole; k += lanes) {
    V loaded[columns];
    for (std::size_t c = 0; c < columns; ++c) {
      loaded[c] = *reinterpret_cast<const V*>(b + c * p.ldb + k);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const V x = *reinterpret_cast<const V*>(a + r * p.lda + k);
      for (std::size_t c = 0; c < columns; ++c) sums[r][c] += x * loaded[c];
    }
  }
  // Unrolled, as the sums have to be named to stay in registers.
#pragma GCC unroll 6
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = p.c + (row + r) * p.ldc + column;
    const Quarter four = lane_sums<lanes>(sums[r]);
    for (std::size_t c = 0; c < columns; ++c) out[c] = four[c];
  }
  for (std::size_t k = whole; k < p.k; ++k) {
    for (std::size_t r = 0; r < rows; ++r) {
      float* out = p.c + (row + r) * p.ldc + column;
      for (std::size_t c = 0; c < columns; ++c) out[c] += a[r * p.lda + k] * b[c * p.ldb + k];
    }
  }
}

template <std::size_t lanes, std::size_t rows>
KVCAST_INLINE void rows_of_dots(const Product& p, std::size_t row) {
  for (; row + rows <= p.m; row += rows) {
    std::size_t column = 0;
    for (; column + 4 <= p.n; column += 4) dot_tile<lanes, rows>(p, row, column);
    for (; column < p.n; ++column) {
      for (std::size_t r = row; r < row + rows; ++r) {
        p.c[r * p.ldc + column] = dot_row(p.a + r * p.lda, p.b + column * p.ldb, p.k);
      }
    }
  }
  if constexpr (rows > 1) rows_of_dots<lanes, rows - 1>(p, row);
}

template <std::size_t lanes>
KVCAST_INLINE void multiply_lanes(const Product& p, bool accumulate, const float* next) {
  // Tiles of equal height: one row at the end would wait for B as long as two multiply.
  const std::size_t heights = (p.m + block_rows - 1) / block_rows;
  for (std::size_t i = 0, row = 0; i < heights; ++i) {
    const std::size_t rows = (p.m - row + heights - i - 1) / (heights - i);
    const std::size_t step = next == nullptr ? 0 : (p.ldb + heights - 1) / heights;
    const Ahead ahead{(next == nullptr ? p.b : next) + i * p.k * step, step};
    tiles_of_rows<lanes, block_rows>(p, accumulate, row, rows, ahead);
    row += rows;
  }
}

template <std::size_t lanes>
KVCAST_INLINE void multiply_lanes_transposed(const Product& p) {
  rows_of_dots<lanes, dot_rows<lanes>>(p, 0);
}

/// The first halves of two vectors with their numbers in turn, or the last halves.
template <std::size_t lanes, std::size_t first, std::size_t... lane>
KVCAST_INLINE Vector<lanes> interleaved(Vector<lanes> a, Vector<lanes> b,
                                        std::index_sequence<lane...>) {
  return __builtin_shufflevector(a, b, (first + lane / 2 + (lane % 2) * lanes)...);
}

/// A square of as many rows as a vector has lanes. Each round puts the rows of the second half
/// between those of the first.
template <std::size_t lanes>
KVCAST_INLINE void transpose_square(const float* from, std::size_t from_step, float* to,
                                    std::size_t to_step) {
  using V = Vector<lanes>;
  constexpr std::make_index_sequence<lanes> all;
  V rows[lanes];
  // One address after the other: GCC would keep all of them, more than there are registers.
#pragma GCC unroll 16
  for (std::size_t r = 0; r < lanes; ++r, from += from_step) {
    rows[r] = *reinterpret_cast<const V*>(from);
    __builtin_prefetch(from + lanes * from_step);
    asm("" : "+r"(from));
  }
#pragma GCC unroll 4
  for (std::size_t round = 1; round < lanes; round *= 2) {
    V next[lanes];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < lanes / 2; ++r) {
      next[2 * r] = interleaved<lanes, 0>(rows[r], rows[r + lanes / 2], all);
      next[2 * r + 1] = interleaved<lanes, lanes / 2>(rows[r], rows[r + lanes / 2], all);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < lanes; ++r) rows[r] = next[r];
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < lanes; ++r, to += to_step) {
    *reinterpret_cast<V*>(to) = rows[r];
    asm("" : "+r"(to));
  }
}

/// out[k, n] of B [n, k]: in squares of whole vectors, the rest in smaller ones.
template <std::size_t lanes>
KVCAST_INLINE void transpose_lanes(const float* b, std::size_t ldb, std::size_t n, std::size_t k,
                                   float* out, std::size_t step) {
  if constexpr (lanes < 4) {
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < n; ++j) out[i * step + j] = b[j * ldb + i];
    }
  } else {
    const std::size_t rows = n / lanes * lanes;
    const std::size_t columns = k / lanes * lanes;
    for (std::size_t j = 0; j < rows; j += lanes) {
      for (std::size_t i = 0; i < columns; i += lanes) {
        transpose_square<lanes>(b + j * ldb + i, ldb, out + i * step + j, step);
      }
    }
    transpose_lanes<lanes / 2>(b + columns, ldb, rows, k - columns, out + columns * step, step);
    transpose_lanes<lanes / 2>(b + rows * ldb, ldb, n - rows, k, out + rows, step);
  }
}

template <std::size_t lanes>
std::size_t tile_columns_of() {
  return tile_vectors<lanes> * lanes;
}

}  // namespace

KVCAST_VECTOR_WIDTHS(std::size_t, tile_columns, tile_columns_of, (), ())
KVCAST_VECTOR_WIDTHS(void, multiply_block, multiply_lanes,
                     (const Product& p, bool accumulate, const float* next), (p, accumulate, next))
KVCAST_VECTOR_WIDTHS(void, multiply_block_transposed, multiply_lanes_transposed, (const Product& p),
                     (p))
namespace {
KVCAST_VECTOR_WIDTHS(void, transpose, transpose_lanes,
                     (const float* b, std::size_t ldb, std::size_t n, std::size_t k, float* out,
                      std::size_t step),
                     (b, ldb, n, k, out, step))
}  // namespace

void transpose_block(const float* b, std::size_t ldb, std::size_t n, std::size_t k, float* out,
                     std::size_t columns, std::size_t step) {
  if (step == 0) step = columns;
  transpose(b, ldb, n, k, out, step);
  if (n == columns) return;
  for (std::size_t i = 0; i < k; ++i) {
    std::fill(out + i * step + n, out + i * step + columns, 0.0F);
  }
}

}  // namespace kvcast::execute
