#include "model/execute/matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <vector>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "model/base/error.h"
#include "model/execute/stored_blocks.h"
#include "model/io/tensors/stored_tensor.h"

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
/// Most tiles of multiply_windows for which a group's weights are unpacked once.
constexpr std::size_t most_tiles = 10;
/// With fewer pieces of work some threads would wait long for others.
constexpr std::size_t pieces_of_thread = 4;
/// Inputs that are unpacked at a time for a few rows: those of a group, 24 KiB, stay in the
/// first-level cache. A multiple of all groups of stored types.
constexpr std::size_t unpacked_inputs = 96;
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

/// sums[rows, 64] (+)= x·Wᵀ of a group's outputs and some of the inputs; rows of x lie `step`
/// numbers apart.
void multiply_panels(const float* data, std::size_t panel_rows, std::size_t count_in,
                     const float* x, std::size_t step, std::size_t rows, float* sums,
                     bool accumulate) {
  const std::size_t width = tile_columns();
  for (std::size_t o = 0; o < group; o += width) {
    multiply_block({.m = rows,
                    .n = width,
                    .k = count_in,
                    .a = x,
                    .lda = step,
                    .b = data + o * panel_rows,
                    .ldb = width,
                    .c = sums + o,
                    .ldc = group},
                   accumulate);
  }
}

}  // namespace

std::size_t Matrix::group_size() const {
  if (dtype_ == DType::FP32) return round_up(in_, block) * group;
  return group / strip_lanes() * strip_words(dtype_, in_);
}

/// pack_group(first_row, rows, target) for each group, on all threads.
template <typename Pack>
void Matrix::pack_groups(Pack pack_group) const {
  std::exception_ptr failure;
#pragma omp parallel for schedule(static)
  for (std::size_t first = 0; first < out_; first += group) {
    try {
      pack_group(first, std::min(group, out_ - first), data_ + first / group * group_size());
    } catch (...) {
#pragma omp critical(kvcast_matrix)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

Matrix::Matrix(std::size_t out, std::size_t in, const Fill& fill, FloatStore& store)
    : out_(out), in_(in) {
  data_ = store.take(bytes() / sizeof(float));
  pack_groups([&](std::size_t first, std::size_t count, float* target) {
    static thread_local std::vector<float> rows;
    rows.resize(group * in);
    if (count < group || in % block != 0) std::fill_n(target, group_size(), 0.0F);
    fill(first, {rows.data(), count * in});
    pack(rows.data(), count, in, target);
  });
}

Matrix::Matrix(std::size_t out, std::size_t in, DType dtype, const FillStored& fill,
               FloatStore& store)
    : out_(out), in_(in), dtype_(dtype) {
  data_ = store.take(bytes() / sizeof(float));
  const std::size_t row = row_bytes(dtype, in);
  const std::size_t lanes = strip_lanes();
  pack_groups([&](std::size_t first, std::size_t count, float* target) {
    static thread_local std::vector<std::byte> rows;
    rows.assign(group * row, std::byte{0});
    fill(first, count, {rows.data(), count * row});
    for (std::size_t o = 0; o < group; o += lanes) {
      pack_strip(dtype, in, rows.data() + o * row, lanes, row,
                 reinterpret_cast<std::uint32_t*>(target) + o / lanes * strip_words(dtype, in));
    }
  });
}

std::uint64_t Matrix::bytes() const {
  return round_up(out_, group) / group * group_size() * sizeof(float);
}

Matrix::Panels Matrix::panels(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                              float* room) const {
  const std::size_t width = tile_columns();
  const float* const data = data_ + group_index * group_size();
  if (dtype_ == DType::FP32) return {data + first_in * width, round_up(in_, block)};
  const std::size_t lanes = strip_lanes();
  const std::size_t rows = round_up(count_in, strip_group(dtype_));
  const auto* const strips = reinterpret_cast<const std::uint32_t*>(data);
  for (std::size_t o = 0; o < group; o += lanes) {
    const StripPart part{dtype_, strips + o / lanes * strip_words(dtype_, in_), in_, first_in,
                         rows};
    unpack_strip(part, room + o / width * width * rows + o % width, width);
  }
  return {room, rows};
}

/// sums[rows, 64] = x·Wᵀ of a group's outputs and a stretch of inputs, for a few rows.
void Matrix::multiply_stretch(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                              const float* x, const float* sums_of_x, std::size_t rows,
                              float* sums) const {
  if (sums_of_x != nullptr) {
    const std::size_t lanes = strip_lanes();
    const auto* strip = reinterpret_cast<const std::uint32_t*>(data_ + group_index * group_size());
    for (std::size_t o = 0; o < group; o += lanes, strip += strip_words(dtype_, in_)) {
      multiply_strip({dtype_, strip, in_, first_in, round_up(count_in, strip_group(dtype_))}, x,
                     sums_of_x, sums + o);
    }
    return;
  }
  const std::size_t together = dtype_ == DType::FP32 ? count_in : unpacked_inputs;
  float room[unpacked_inputs * group];
  for (std::size_t k = 0; k < count_in; k += together) {
    const std::size_t count = std::min(together, count_in - k);
    const Panels p = panels(group_index, first_in + k, count, room);
    multiply_panels(p.data, p.rows, count, x + first_in + k, in_, rows, sums, k > 0);
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
  const std::size_t whole = dtype_ == DType::FP32 ? block : strip_group(dtype_);
  const std::size_t stretch = round_up(std::max(min_stretch, (in_ + wanted - 1) / wanted), whole);
  const std::size_t stretches = (in_ + stretch - 1) / stretch;
  const std::size_t size = rows * group;
  static thread_local Arena arena;
  // One row is multiplied by blocks as they are stored, more by what they are unpacked to.
  const bool direct = dtype_ != DType::FP32 && rows == 1;
  const std::size_t padded_in = direct ? round_up(in_, whole) : 0;
  const std::size_t x_size = 2 * padded_in;
  float* const room = arena.reserve(x_size + (stretches == 1 ? 0 : groups * stretches * size));
  float* const parts = room + x_size;
  if (direct) {
    std::copy_n(x, in_, room);
    std::fill(room + in_, room + padded_in, 0.0F);
    sum_groups({room, padded_in}, whole, room + padded_in);
    x = room;
  }
  const float* const sums_of_x = direct ? room + padded_in : nullptr;
  // Where groups are cut into stretches there are fewer groups than min_pieces.
  std::array<std::atomic<std::size_t>, min_pieces> done{};
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * stretches; ++piece) {
    const std::size_t g = piece / stretches;
    const std::size_t first = piece % stretches * stretch;
    float own[max_streamed_rows * group];
    float* const sums = stretches == 1 ? own : parts + piece * size;
    multiply_stretch(g, first, std::min(stretch, in_ - first), x, sums_of_x, rows, sums);
    if (stretches > 1 && done[g].fetch_add(1) + 1 < stretches) continue;
    write_group(g, stretches == 1 ? own : parts + g * stretches * size, stretches, rows, y, bias);
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
  // What is unpacked is used for several tiles, unless that leaves threads too few pieces.
  const auto wanted = pieces_of_thread * static_cast<std::size_t>(omp_get_max_threads());
  const std::size_t most =
      dtype_ == DType::FP32 ? 1 : std::clamp<std::size_t>(tiles * groups / wanted, 1, most_tiles);
  const std::size_t runs = (tiles + most - 1) / most;
  const std::size_t together = (tiles + runs - 1) / runs;
  constexpr std::size_t tile_size = window_rows * group;
  // Group by group: a thread keeps one in its cache while the rows go by.
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * runs; ++piece) {
    const std::size_t first = piece % runs * together * window_rows;
    const std::size_t end = std::min(rows, first + together * window_rows);
    static thread_local Arena arena;
    float* const sums = arena.reserve(together * tile_size + window_inputs * group);
    for (std::size_t k = 0; k < in_; k += window_inputs) {
      const std::size_t count = std::min(window_inputs, in_ - k);
      const Panels p = panels(piece / runs, k, count, sums + together * tile_size);
      for (std::size_t r = first; r < end; r += window_rows) {
        multiply_panels(p.data, p.rows, count, x + r * step + k, step,
                        std::min(window_rows, end - r), sums + (r - first) * group, k > 0);
      }
    }
    write_group(piece / runs, sums, 1, end - first, y + first * out_, bias);
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
