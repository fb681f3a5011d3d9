#include "model/execute/matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <vector>

#include <omp.h>
#if KVCAST_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

#include "model/base/error.h"
#include "model/execute/large_product.h"
#include "model/execute/stored_blocks.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast::execute {
namespace {

constexpr std::size_t group = 64;  ///< outputs of a piece of work: some panels of tile_columns()
constexpr std::size_t block = 16;  ///< inputs are padded to a multiple of it
/// Up to this many rows threads also share stretches of inputs: the weights of a group are read
/// once, and their sums stay in the caches.
constexpr std::size_t max_streamed_rows = 4 * block_rows;
/// Rows of a tile; a multiple of block_rows.
constexpr std::size_t window_rows = 24;
/// Inputs of a tile that are multiplied at a time, so that a panel of 8 or 16 outputs (24 KiB), or
/// 64 (96 KiB), stays in the first-level or second-level cache for all rows of the tile.
constexpr std::size_t window_inputs = 384;
/// Most rows for which a group's weights are unpacked once: sums are 256 KiB.
constexpr std::size_t most_group_rows = 1024;
constexpr std::size_t narrow_tile_rows = 2 * narrow_rows;
/// A panel of bf16 is 96 KiB, which the second-level cache holds beside the sums.
constexpr std::size_t narrow_window_inputs = 768;
/// With fewer pieces of work some threads would wait long for others.
constexpr std::size_t pieces_of_thread = 4;
/// Inputs that are unpacked at a time for a few rows: those of a group, 24 KiB, stay in the
/// first-level cache. A multiple of all groups of stored types.
constexpr std::size_t unpacked_inputs = 96;
/// A small matrix is cut into at least this many pieces for the threads, unless a piece would have
/// fewer inputs than min_stretch.
constexpr std::size_t min_pieces = 32;
constexpr std::size_t min_stretch = 64;
constexpr std::size_t padded_streamed_rows = round_up(max_streamed_rows, narrow_rows);

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

/// The first `count_in` inputs of a group's panels, rounded to bf16, in `room`, where they may lie
/// already.
const float* rounded_panels(const float* data, std::size_t panel_rows, std::size_t count_in,
                            float* room) {
  const std::size_t width = tile_columns();
  for (std::size_t o = 0; o < group; o += width) {
    round_rows(Arithmetic::BF16, data + o * panel_rows, count_in * width, 1, count_in * width,
               narrow_inputs, room + o * count_in);
  }
  return room;
}

}  // namespace

struct Matrix::Rows {
  const float* x;
  std::size_t step;
  std::size_t count;
  Arithmetic arithmetic;               ///< of this product
  std::optional<StripRows> stored{};   ///< that meet blocks as they are stored
  const NarrowRows* narrow = nullptr;  ///< in arithmetic that this processor has kernels for

  /// With those that fill narrow tiles.
  std::size_t padded() const { return narrow == nullptr ? count : round_up(count, narrow_rows); }
};

std::size_t Matrix::group_size() const {
  if (dtype_ == DType::FP32) return round_up(in_, block) * group;
  return group / strip_lanes() * strip_words(dtype_, in_);
}

/// Inputs come in multiples of it.
std::size_t Matrix::group_of_inputs() const {
  return dtype_ == DType::FP32 ? block : strip_group(dtype_);
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

Matrix::Matrix(std::size_t out, std::size_t in, const Fill& fill, FloatStore& store,
               Arithmetic arithmetic)
    : out_(out),
      in_(in),
      arithmetic_(arithmetic == Arithmetic::BF16 ? arithmetic : Arithmetic::FP32) {
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
               FloatStore& store, Arithmetic arithmetic)
    : out_(out),
      in_(in),
      dtype_(dtype),
      arithmetic_(arithmetic == Arithmetic::INT8 && !has_bytes(dtype) ? Arithmetic::FP32
                                                                      : arithmetic) {
  data_ = store.take(bytes() / sizeof(float));
  const std::size_t row = row_bytes(dtype, in);
  const std::size_t lanes = strip_lanes();
  pack_groups([&](std::size_t first, std::size_t count, float* target) {
    static thread_local std::vector<std::byte> rows;
    rows.resize(group * row);
    fill(first, count, {rows.data(), count * row});
    std::fill(rows.begin() + static_cast<std::ptrdiff_t>(count * row), rows.end(), std::byte{0});
    for (std::size_t o = 0; o < group; o += lanes) {
      pack_strip(dtype, in, rows.data() + o * row, lanes, row,
                 reinterpret_cast<std::uint32_t*>(target) + o / lanes * strip_words(dtype, in));
    }
  });
}

std::uint64_t Matrix::bytes() const {
  return round_up(out_, group) / group * group_size() * sizeof(float);
}

/// The group's inputs as panels, each `panel_rows` inputs behind the one before.
const float* Matrix::panels(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                            std::size_t& panel_rows, float* room) const {
  const std::size_t width = tile_columns();
  const float* const data = data_ + group_index * group_size();
  if (dtype_ == DType::FP32) {
    panel_rows = round_up(in_, block);
    return data + first_in * width;
  }
  const std::size_t lanes = strip_lanes();
  panel_rows = round_up(count_in, strip_group(dtype_));
  const auto* const strips = reinterpret_cast<const std::uint32_t*>(data);
  for (std::size_t o = 0; o < group; o += lanes) {
    const StripPart part{dtype_, strips + o / lanes * strip_words(dtype_, in_), in_, first_in,
                         panel_rows};
    unpack_strip(part, room + o / width * width * panel_rows + o % width, width);
  }
  return room;
}

NarrowPanel Matrix::narrow_panel(std::size_t group_index, std::size_t first_in,
                                 std::size_t count_in, float* room) const {
  NarrowPanel panel;
  const float* const data = data_ + group_index * group_size();
  const bool whole = arithmetic_ == Arithmetic::INT8;
  const std::size_t lanes = strip_lanes();
  const std::size_t strips = group / lanes;
  const std::size_t words = count_in * lanes / (whole ? 4 : 2);
  auto* const out = reinterpret_cast<std::uint32_t*>(room);
  if (dtype_ == DType::FP32) {
    const std::size_t there = std::min(count_in, round_up(in_, block) - first_in);
    pack_pairs(data + first_in * group, there, count_in, out);
    for (std::size_t s = 0; s < strips; ++s) panel.strips[s] = out + s * words;
    return panel;
  }
  panel.group = whole ? strip_group(dtype_) : narrow_inputs;
  panel.wide = whole && has_wide_bytes(dtype_);
  const std::size_t scales = whole ? count_in / panel.group * lanes : 0;
  float* const of_scales = room + strips * words;
  float* const of_minimums = of_scales + strips * scales;
  panel.scales = of_scales;
  panel.minimums = of_minimums;
  const auto* strip = reinterpret_cast<const std::uint32_t*>(data);
  for (std::size_t s = 0; s < strips; ++s, strip += strip_words(dtype_, in_)) {
    const StripPart part{dtype_, strip, in_, first_in, count_in};
    panel.strips[s] = out + s * words;
    if (whole) {
      unpack_bytes(part, out + s * words, of_scales + s * scales, of_minimums + s * scales);
    } else if (dtype_ == DType::BF16) {
      panel.strips[s] = strip + first_in / 2 * lanes;
    } else {
      unpack_pairs(part, out + s * words);
    }
  }
  return panel;
}

/// sums[rows, 64] = x·Wᵀ of a group's outputs and a stretch of inputs, as blocks are stored; one
/// row in narrow arithmetic.
void Matrix::multiply_stored(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                             const Rows& rows, float* sums) const {
  const std::size_t lanes = strip_lanes();
  const auto* strip = reinterpret_cast<const std::uint32_t*>(data_ + group_index * group_size());
  for (std::size_t o = 0; o < group; o += lanes, strip += strip_words(dtype_, in_)) {
    const StripPart part{dtype_, strip, in_, first_in, round_up(count_in, strip_group(dtype_))};
    if (rows.stored) {
      multiply_strip(part, *rows.stored, sums + o, group);
    } else {
      multiply_bytes(part, rows.narrow->words(0, 0), rows.narrow->scales(0), rows.narrow->sums(0),
                     sums + o);
    }
  }
}

/// sums[rows, 64] = x·Wᵀ of a group's outputs, a stretch of inputs, `together` of them at a time,
/// and some of the rows. `room` is for as many inputs of the group.
void Matrix::multiply_part(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                           const Rows& rows, std::size_t first_row, std::size_t count,
                           std::size_t together, float* room, float* sums) const {
  for (std::size_t k = 0; k < count_in; k += together) {
    const std::size_t n = std::min(together, count_in - k);
    if (rows.narrow != nullptr) {
      const std::size_t padded = round_up(n, narrow_inputs);
      const NarrowPanel panel = narrow_panel(group_index, first_in + k, padded, room);
      multiply_narrow(rows.arithmetic,
                      {*rows.narrow, first_row, count, first_in + k, padded, panel, sums, k > 0});
      continue;
    }
    std::size_t panel_rows = 0;
    const float* data = panels(group_index, first_in + k, n, panel_rows, room);
    if (rows.arithmetic == Arithmetic::BF16) {
      data = rounded_panels(data, panel_rows, n, room);
      panel_rows = n;
    }
    for (std::size_t r = 0; r < count; r += window_rows) {
      multiply_panels(data, panel_rows, n, rows.x + (first_row + r) * rows.step + first_in + k,
                      rows.step, std::min(window_rows, count - r), sums + r * group, k > 0);
    }
  }
}

/// Writes the results of a group's outputs: the sums [parts, rows, 64] of parts of the inputs,
/// `part_size` numbers apart, added in order, and the bias.
void Matrix::write_group(std::size_t group_index, const float* sums, std::size_t parts,
                         std::size_t part_size, std::size_t rows, float* y,
                         const float* bias) const {
  const std::size_t first = group_index * group;
  const std::size_t count = std::min(group, out_ - first);
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = y + r * out_ + first;
    std::copy_n(sums + r * group, count, out);
    for (std::size_t part = 1; part < parts; ++part) {
      const float* more = sums + part * part_size + r * group;
      for (std::size_t o = 0; o < count; ++o) out[o] += more[o];
    }
    if (bias == nullptr) continue;
    for (std::size_t o = 0; o < count; ++o) out[o] += bias[first + o];
  }
}

/// For a few rows: every weight is read once. Threads share groups and, in small matrices,
/// stretches of inputs. The thread that finishes a group's last stretch adds up all stretches in
/// order, so the result does not depend on the number of threads.
void Matrix::stream(const Rows& rows, float* y, const float* bias) const {
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t wanted = (min_pieces + groups - 1) / groups;
  const std::size_t whole =
      rows.narrow == nullptr ? group_of_inputs() : std::max(narrow_inputs, group_of_inputs());
  const std::size_t stretch = round_up(std::max(min_stretch, (in_ + wanted - 1) / wanted), whole);
  const std::size_t stretches = (in_ + stretch - 1) / stretch;
  const std::size_t size = rows.padded() * group;
  const bool as_stored = rows.stored || (rows.count == 1 && rows.narrow != nullptr);
  const std::size_t together =
      dtype_ == DType::FP32 && rows.arithmetic == Arithmetic::FP32 ? stretch : unpacked_inputs;
  static thread_local Arena arena;
  float* const parts = arena.reserve(stretches == 1 ? 0 : groups * stretches * size);
  // Where groups are cut into stretches there are fewer groups than min_pieces.
  std::array<std::atomic<std::size_t>, min_pieces> done{};
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * stretches; ++piece) {
    const std::size_t g = piece / stretches;
    const std::size_t first = piece % stretches * stretch;
    const std::size_t count = std::min(stretch, in_ - first);
    float own[padded_streamed_rows * group];
    float room[unpacked_inputs * group];
    float* const sums = stretches == 1 ? own : parts + piece * size;
    if (as_stored) {
      multiply_stored(g, first, count, rows, sums);
    } else {
      multiply_part(g, first, count, rows, 0, rows.count, together, room, sums);
    }
    if (stretches > 1 && done[g].fetch_add(1) + 1 < stretches) continue;
    write_group(g, stretches == 1 ? own : parts + g * stretches * size, stretches, size, rows.count,
                y, bias);
  }
}

/// For many rows, group by group: a thread keeps one in its cache while the rows go by.
void Matrix::multiply_tiles(const Rows& rows, float* y, const float* bias) const {
  const bool narrow = rows.narrow != nullptr;
  const std::size_t tile = narrow ? narrow_tile_rows : window_rows;
  const std::size_t inputs = narrow ? narrow_window_inputs : window_inputs;
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t tiles = (rows.count + tile - 1) / tile;
  // What is unpacked is used for several tiles, unless that leaves threads too few pieces.
  const auto wanted = pieces_of_thread * static_cast<std::size_t>(omp_get_max_threads());
  const bool unpacked = dtype_ != DType::FP32 || rows.arithmetic != Arithmetic::FP32;
  const std::size_t most =
      unpacked ? std::clamp<std::size_t>(tiles * groups / wanted, 1, most_group_rows / tile) : 1;
  const std::size_t runs = (tiles + most - 1) / most;
  const std::size_t together = (tiles + runs - 1) / runs * tile;
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * runs; ++piece) {
    const std::size_t first = piece % runs * together;
    const std::size_t end = std::min(rows.count, first + together);
    static thread_local Arena arena;
    float* const sums = arena.reserve((together + inputs) * group);
    multiply_part(piece / runs, 0, in_, rows, first, end - first, inputs, sums + together * group,
                  sums);
    write_group(piece / runs, sums, 1, 0, end - first, y + first * out_, bias);
  }
}

void Matrix::multiply(const float* x, std::size_t rows, float* y, const float* bias) const {
  multiply_windows(x, in_, rows, y, bias);
}

void Matrix::multiply_windows(const float* x, std::size_t step, std::size_t count, float* y,
                              const float* bias) const {
  if (count == 0) return;
  Rows rows{x, step, count, arithmetic_};
  if (count == 1 && arithmetic_ == Arithmetic::BF16) rows.arithmetic = Arithmetic::FP32;
  static thread_local Arena arena;
  const bool rounds = rows.arithmetic != Arithmetic::FP32;
  const bool has_kernels = rounds && narrow_kernels(rows.arithmetic) != NarrowKernels::None;
  const std::size_t in_group =
      rows.arithmetic == Arithmetic::INT8 ? group_of_inputs() : narrow_inputs;
  std::optional<NarrowRows> narrow;
  if (has_kernels) {
    float* const memory = arena.reserve(NarrowRows::memory(arithmetic_, count, in_, in_group));
    narrow.emplace(arithmetic_, x, step, count, in_, in_group, memory);
    rows.narrow = &*narrow;
  } else if (const bool as_stored =
                 dtype_ != DType::FP32 && count <= (rounds ? 1 : max_strip_rows());
             rounds || as_stored) {
    const std::size_t padded_in = round_up(in_, group_of_inputs());
    const std::size_t groups = padded_in / group_of_inputs();
    rows.step = as_stored ? padded_in : in_;
    float* const room = arena.reserve(count * (rows.step + groups));
    if (rounds) round_rows(rows.arithmetic, x, step, count, in_, in_group, room);
    float* const sums = room + count * rows.step;
    for (std::size_t r = 0; as_stored && r < count; ++r) {
      float* const row = room + r * padded_in;
      if (!rounds) std::copy_n(x + r * step, in_, row);
      std::fill(row + in_, row + padded_in, 0.0F);
      sum_groups({row, padded_in}, group_of_inputs(), sums + r * groups);
    }
    if (as_stored) rows.stored = {room, padded_in, sums, groups, count};
    rows.x = room;
  }
  if (count <= max_streamed_rows) return stream(rows, y, bias);
  multiply_tiles(rows, y, bias);
}

// Why oneDNN: Slim's weights of one head lie in rows as wide as the model. Panels of them,
// multiplied by multiply_block, reach 0.5 to 1.0 of oneDNN's rate with 16 lanes, 0.5 to 1.1 with 8
// and 0.5 to 1.2 with 4 (32 to 1024 rows, 64 to 4096 features, one core).
void multiply(const Product& p, const ProductForm& form) {
#if KVCAST_HAS_ONEDNN
  const auto dim = [](std::size_t n) { return static_cast<dnnl_dim_t>(n); };
  const auto order = [](bool transposed) { return transposed ? 'T' : 'N'; };
  const dnnl_status_t status =
      dnnl_sgemm(order(form.a_transposed), order(form.b_transposed), dim(p.m), dim(p.n), dim(p.k),
                 1, p.a, dim(p.lda), p.b, dim(p.ldb), form.accumulates ? 1 : 0, p.c, dim(p.ldc));
  KVCAST_ASSERT(status == dnnl_success);
#else
  multiply_large(p, form);
#endif
}

}  // namespace kvcast::execute
