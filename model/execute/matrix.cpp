#include "model/execute/matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

#include "model/base/error.h"

namespace kvcast::execute {
namespace {

constexpr std::size_t group = 64;  ///< outputs of a piece of work: some panels of tile_columns()
constexpr std::size_t block = 16;  ///< inputs are padded to a multiple of it
/// Up to this many rows threads also share stretches of inputs: the weights of a group are read
/// once, and their sums stay in the caches.
constexpr std::size_t max_streamed_rows = 4 * block_rows;
/// Rows of a tile of multiply_windows; a multiple of block_rows.
constexpr std::size_t window_rows = 24;
/// Inputs that it multiplies at a time, so that a panel of 8 or 16 outputs (24 KiB), or 64 (96
/// KiB), stays in the first-level or second-level cache for all rows of the tile.
constexpr std::size_t window_inputs = 384;
/// A small matrix is cut into at least this many pieces for the threads, unless a piece would have
/// fewer inputs than min_stretch.
constexpr std::size_t min_pieces = 32;
constexpr std::size_t min_stretch = 64;

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Writes the rows of a group, each with its `in` inputs, into its panels.
void pack(const float* rows, std::size_t count, std::size_t in, float* data) {
  const std::size_t width = tile_columns();
  const std::size_t panel = round_up(in, block) * width;
  // Eight inputs at a time keep the written lines in the cache.
  for (std::size_t k = 0; k < in; k += 8) {
    const std::size_t end = std::min(in, k + 8);
    for (std::size_t r = 0; r < count; ++r) {
      float* start = data + r / width * panel + r % width;
      for (std::size_t i = k; i < end; ++i) start[i * width] = rows[r * in + i];
    }
  }
}

}  // namespace

Matrix::Matrix(std::size_t out, std::size_t in, const Fill& fill, FloatStore& store)
    : out_(out), in_(in) {
  const std::size_t group_size = round_up(in, block) * group;
  data_ = store.take(round_up(out, group) / group * group_size);
  std::exception_ptr failure;
#pragma omp parallel
  {
    std::vector<float> rows;
#pragma omp for schedule(static)
    for (std::size_t first = 0; first < out; first += group) {
      const std::size_t count = std::min(group, out - first);
      float* target = data_ + first / group * group_size;
      try {
        rows.resize(group * in);
        if (count < group || in % block != 0) std::fill_n(target, group_size, 0.0F);
        fill(first, {rows.data(), count * in});
        pack(rows.data(), count, in, target);
      } catch (...) {
#pragma omp critical(kvcast_matrix)
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::uint64_t Matrix::bytes() const {
  return round_up(in_, block) * round_up(out_, group) * sizeof(float);
}

/// sums[rows, 64] (+)= x·Wᵀ of the group's outputs and some of the inputs; rows of x lie `step`
/// numbers apart.
void Matrix::multiply_group(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                            const float* x, std::size_t step, std::size_t rows, float* sums,
                            bool accumulate) const {
  const std::size_t width = tile_columns();
  const std::size_t padded_in = round_up(in_, block);
  for (std::size_t o = 0; o < group; o += width) {
    multiply_block({.m = rows,
                    .n = width,
                    .k = count_in,
                    .a = x + first_in,
                    .lda = step,
                    .b = data_ + (group_index * group + o) * padded_in + first_in * width,
                    .ldb = width,
                    .c = sums + o,
                    .ldc = group},
                   accumulate);
  }
}

/// Writes the results of a group's outputs: the sums [parts, rows, 64] of parts of the inputs,
/// added in order, and the bias.
void Matrix::write_group(std::size_t group_index, const float* sums, std::size_t parts,
                         std::size_t rows, float* y, const float* bias) const {
  const std::size_t first = group_index * group;
  const std::size_t count = std::min(group, out_ - first);
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = y + r * out_ + first;
    std::copy_n(sums + r * group, count, out);
    for (std::size_t part = 1; part < parts; ++part) {
      const float* more = sums + (part * rows + r) * group;
      for (std::size_t o = 0; o < count; ++o) out[o] += more[o];
    }
    if (bias == nullptr) continue;
    for (std::size_t o = 0; o < count; ++o) out[o] += bias[first + o];
  }
}

/// For a few rows: every weight is read once. Threads share groups and, in small matrices,
/// stretches of inputs. The thread that finishes a group's last stretch adds up all stretches in
/// order, so the result does not depend on the number of threads.
void Matrix::stream(const float* x, std::size_t rows, float* y, const float* bias) const {
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t wanted = (min_pieces + groups - 1) / groups;
  const std::size_t stretch = round_up(std::max(min_stretch, (in_ + wanted - 1) / wanted), block);
  const std::size_t stretches = (in_ + stretch - 1) / stretch;
  const std::size_t size = rows * group;
  static thread_local Arena arena;
  float* const parts = stretches == 1 ? nullptr : arena.reserve(groups * stretches * size);
  // Where groups are cut into stretches there are fewer groups than min_pieces.
  std::array<std::atomic<std::size_t>, min_pieces> done{};
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * stretches; ++piece) {
    const std::size_t g = piece / stretches;
    const std::size_t first = piece % stretches * stretch;
    float whole[max_streamed_rows * group];
    float* const sums = stretches == 1 ? whole : parts + piece * size;
    multiply_group(g, first, std::min(stretch, in_ - first), x, in_, rows, sums, false);
    if (stretches > 1 && done[g].fetch_add(1) + 1 < stretches) continue;
    write_group(g, stretches == 1 ? whole : parts + g * stretches * size, stretches, rows, y, bias);
  }
}

void Matrix::multiply(const float* x, std::size_t rows, float* y, const float* bias) const {
  if (rows <= max_streamed_rows) return stream(x, rows, y, bias);
  multiply_windows(x, in_, rows, y, bias);
}

void Matrix::multiply_windows(const float* x, std::size_t step, std::size_t rows, float* y,
                              const float* bias) const {
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t tiles = (rows + window_rows - 1) / window_rows;
  // Group by group: a thread keeps one in its cache while the rows go by.
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * tiles; ++piece) {
    const std::size_t first = piece % tiles * window_rows;
    const std::size_t n = std::min(window_rows, rows - first);
    float sums[window_rows * group];
    for (std::size_t k = 0; k < in_; k += window_inputs) {
      multiply_group(piece / tiles, k, std::min(window_inputs, in_ - k), x + first * step, step, n,
                     sums, k > 0);
    }
    write_group(piece / tiles, sums, 1, n, y + first * out_, bias);
  }
}

// Why oneDNN: Slim's weights of one head lie in rows as wide as the model. Panels of them,
// multiplied by multiply_block, reach 0.5 to 1.0 of oneDNN's rate with 16 lanes, 0.5 to 1.1 with 8
// and 0.5 to 1.2 with 4 (32 to 1024 rows, 64 to 4096 features, one core).
void multiply(const Product& p, const ProductForm& form) {
  const auto dim = [](std::size_t n) { return static_cast<dnnl_dim_t>(n); };
  const auto order = [](bool transposed) { return transposed ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(order(form.a_transposed), order(form.b_transposed), dim(p.m), dim(p.n), dim(p.k),
                 1, p.a, dim(p.lda), p.b, dim(p.ldb), form.accumulates ? 1 : 0, p.c, dim(p.ldc));
  KVCAST_ASSERT(status == dnnl_success);
}

}  // namespace kvcast::execute
