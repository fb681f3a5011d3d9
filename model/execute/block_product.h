/// A small matrix product for tiles that lie in a core's caches, on the calling thread.
#pragma once

#include <cstddef>

namespace kvcast::execute {

/// Columns come in multiples of this.
inline constexpr std::size_t vector_width = 16;
/// Rows that share one load of B; a tile of C with as many rows stays in registers.
inline constexpr std::size_t block_rows = 6;

inline std::size_t padded(std::size_t n) {
  return (n + vector_width - 1) / vector_width * vector_width;
}

/// C[m, n] = A[m, k]·B; rows lie lda, ldb and ldc numbers apart.
struct Product {
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  const float* a = nullptr;
  std::size_t lda = 0;
  const float* b = nullptr;
  std::size_t ldb = 0;
  float* c = nullptr;
  std::size_t ldc = 0;
};

/// Columns of the widest tile that this processor keeps in registers: B is read in order when its
/// rows are no longer.
std::size_t tile_columns();
/// B [k, n], n a multiple of vector_width or of tile_columns; with `accumulate` C += A·B. `next`
/// has as many numbers as B and is multiplied next: it is on its way to the second-level cache in
/// the meantime.
void multiply_block(const Product& product, bool accumulate = false, const float* next = nullptr);
/// The same with B [n, k]: C = A·Bᵀ, rows of B ldb apart; n and k are any numbers.
void multiply_block_transposed(const Product& product);
/// out[k, columns] = Bᵀ of B [n, k], whose rows lie ldb apart; columns after the n are zero. Rows
/// of `out` lie `step` apart, or as many as there are columns.
void transpose_block(const float* b, std::size_t ldb, std::size_t n, std::size_t k, float* out,
                     std::size_t columns, std::size_t step = 0);

}  // namespace kvcast::execute
