#include "model/execute/large_product.h"

#include <algorithm>

#include <omp.h>

#include "model/execute/arena.h"

namespace kvcast::execute {
namespace {

/// Columns of a packed panel of B: those of a tile, so that it is read in order. On a Zen 3 core
/// tiles of panels that are wider reach 0.65 to 0.77 of the multiply-add rate, of these 0.93.
const std::size_t panel = std::max(tile_columns(), vector_width);
/// Numbers of B that are packed together, and columns: 16 MiB.
constexpr std::size_t most_packed = std::size_t{4} << 20;
constexpr std::size_t most_columns = 4096;
/// Numbers of a sum taken at a time: with a piece's rows of A a panel stays in the second-level
/// cache.
constexpr std::size_t depth = 640;
/// Of rows of a block of A that is transposed. A power of two would push them out of the caches.
constexpr std::size_t stride = depth + vector_width;
/// Rows of a piece of work: 240 KiB of A, which stay in the 512 of the second-level cache of
/// processors with AVX2. Two threads of a Sapphire Rapids processor, which has 2 MiB, are 1 to 4 %
/// slower with 144 to 240 rows: at the end the one waits longer for the other.
constexpr std::size_t piece_rows = 96;

/// Columns [column, column + n) of some rows of B, as panels.
struct Chunk {
  std::size_t column;
  std::size_t n;
  std::size_t k;
  std::size_t count;  ///< rows
};

/// The chunk's panels, each [count][panel] with zeros after its last column. B is read in order.
void pack(const Product& p, bool transposed, const Chunk& chunk, float* packed) {
  if (transposed) {
#pragma omp parallel for schedule(static)
    for (std::size_t j = 0; j < chunk.n; j += panel) {
      transpose_block(p.b + (chunk.column + j) * p.ldb + chunk.k, p.ldb,
                      std::min(panel, chunk.n - j), chunk.count, packed + j * chunk.count, panel);
    }
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::size_t k = 0; k < chunk.count; ++k) {
    const float* const row = p.b + (chunk.k + k) * p.ldb + chunk.column;
    for (std::size_t j = 0; j < chunk.n; j += panel) {
      const std::size_t n = std::min(panel, chunk.n - j);
      float* const to = packed + j * chunk.count + k * panel;
      std::copy_n(row + j, n, to);
      std::fill(to + n, to + panel, 0.0F);
    }
  }
}

/// Some rows of C.
class Piece {
 public:
  /// `block` has room for room() numbers.
  Piece(const Product& p, const ProductForm& form, std::size_t row, std::size_t rows, float* block)
      : p_(p),
        form_(form),
        row_(row),
        rows_(rows),
        block_(block),
        edge_(block + piece_rows * stride) {}
  static std::size_t room() { return piece_rows * (stride + panel); }

  void run(const Chunk& chunk, const float* packed) {
    // In equal parts: each reads and writes C.
    const std::size_t parts = (chunk.count + depth - 1) / depth;
    const std::size_t even = (chunk.count + parts - 1) / parts;
    for (std::size_t k = 0; k < chunk.count; k += even) {
      const std::size_t count = std::min(even, chunk.count - k);
      if (form_.a_transposed) {
        transpose_block(p_.a + (chunk.k + k) * p_.lda + row_, p_.lda, count, rows_, block_, count,
                        stride);
      }
      for (std::size_t j = 0; j < chunk.n; j += panel) {
        const float* const b = packed + j * chunk.count + k * panel;
        const float* const next = j + panel < chunk.n ? b + panel * chunk.count : nullptr;
        multiply_panel(b, next, chunk.k + k, count, chunk.column + j, std::min(panel, chunk.n - j));
      }
    }
  }

 private:
  void multiply_panel(const float* b, const float* next, std::size_t k, std::size_t count,
                      std::size_t column, std::size_t n) {
    float* const c = p_.c + row_ * p_.ldc + column;
    const bool accumulates = form_.accumulates || k > 0;
    const bool whole = n % vector_width == 0;
    const Product part{.m = rows_,
                       .n = padded(n),
                       .k = count,
                       .a = form_.a_transposed ? block_ : p_.a + row_ * p_.lda + k,
                       .lda = form_.a_transposed ? stride : p_.lda,
                       .b = b,
                       .ldb = panel,
                       .c = whole ? c : edge_,
                       .ldc = whole ? p_.ldc : panel};
    if (!whole && accumulates) {
      for (std::size_t r = 0; r < rows_; ++r) std::copy_n(c + r * p_.ldc, n, edge_ + r * panel);
    }
    multiply_block(part, accumulates, next);
    if (whole) return;
    for (std::size_t r = 0; r < rows_; ++r) std::copy_n(edge_ + r * panel, n, c + r * p_.ldc);
  }

  const Product& p_;
  const ProductForm& form_;
  std::size_t row_;
  std::size_t rows_;
  float* block_;  ///< A where it is transposed, [rows][stride]
  float* edge_;   ///< columns of C that are no whole vectors
};

}  // namespace

// Why not oneDNN: its sums depend on the number of threads, and in pieces of fixed sizes each packs
// all of the other operand: 512 rows at a time reach 100 to 150 GFLOP/s of 175, these 130 to 150
// (one core, products of a model with 576 features).
void multiply_large(const Product& p, const ProductForm& form) {
  const std::size_t columns = std::min(most_columns, (p.n + panel - 1) / panel * panel);
  const std::size_t depths = std::max<std::size_t>(most_packed / columns / depth, 1) * depth;
  const std::size_t pieces = (p.m + piece_rows - 1) / piece_rows;
  // The block of the last product: its pages are there. Behind the panels a room for each thread.
  static thread_local Arena arena;
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  const std::size_t packed_numbers = columns * std::min(depths, p.k);
  float* const packed = arena.reserve(packed_numbers + threads * Piece::room());
  const auto run = [&](const Chunk& chunk) {
    pack(p, form.b_transposed, chunk, packed);
#pragma omp parallel for schedule(dynamic, 1)
    for (std::size_t i = 0; i < pieces; ++i) {
      float* const room =
          packed + packed_numbers + static_cast<std::size_t>(omp_get_thread_num()) * Piece::room();
      const std::size_t row = i * piece_rows;
      Piece(p, form, row, std::min(piece_rows, p.m - row), room).run(chunk, packed);
    }
  };
  for (std::size_t column = 0; column < p.n; column += columns) {
    for (std::size_t k = 0; k < p.k; k += depths) {
      run({column, std::min(columns, p.n - column), k, std::min(depths, p.k - k)});
    }
  }
}

}  // namespace kvcast::execute
