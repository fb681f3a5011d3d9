#include "model/execute/matrix.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "model/error.h"
#include "model/execute/vector_lanes.h"

namespace kvcast::execute {
namespace {

using dnnl::memory;
using Dim = memory::dim;

constexpr std::size_t group = 64;  ///< outputs of a piece of work, one panel or several
constexpr std::size_t block = 16;  ///< inputs are padded to a multiple of it
/// Rows up to which a product streams panels itself: the first of them bring a piece of the weights
/// into the second-level cache for the others. Beside oneDNN on Zen 4, one and two threads, 8 rows
/// are 1.2 times as fast, 24 rows 1.07; from 32 rows on oneDNN is as fast.
constexpr std::size_t max_streamed_rows = 4 * block_rows;
/// Rows of a tile of multiply_windows; a multiple of block_rows.
constexpr std::size_t window_rows = 24;
/// Inputs that it multiplies at a time, so that a panel of 16 outputs (24 KiB), or 64 (96 KiB),
/// stays in the first-level or second-level cache for all rows of the tile.
constexpr std::size_t window_inputs = 384;
/// Pieces of a small matrix at least, to share among threads, and the inputs of a piece.
constexpr std::size_t min_pieces = 32;
constexpr std::size_t min_stretch = 64;

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc plain(std::size_t rows, std::size_t columns) {
  return {{static_cast<Dim>(rows), static_cast<Dim>(columns)},
          memory::data_type::f32,
          memory::format_tag::ab};
}

memory::desc weights_desc(std::size_t out, std::size_t in) {
  return {{static_cast<Dim>(in), static_cast<Dim>(out)},
          memory::data_type::f32,
          memory::format_tag::BA16a64b};
}

/// A product x[rows, in]·Wᵀ ready to run, and the memory it works in.
struct CompiledProduct {
  dnnl::matmul matmul;
  memory::desc scratchpad;
};

CompiledProduct compile(std::size_t rows, std::size_t in, std::size_t out, bool bias) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto x = plain(rows, in);
  const auto w = weights_desc(out, in);
  const auto y = plain(rows, out);
  const auto d = bias ? dnnl::matmul::desc(x, w, plain(1, out), y) : dnnl::matmul::desc(x, w, y);
  const dnnl::matmul::primitive_desc primitive(d, attributes, cpu());
  return {dnnl::matmul(primitive), primitive.scratchpad_desc()};
}

/// oneDNN keeps compiled kernels, but finding one there takes longer than a small product.
const CompiledProduct& product_of(std::size_t rows, std::size_t in, std::size_t out, bool bias) {
  using Key = std::tuple<std::size_t, std::size_t, std::size_t, bool, int>;
  static std::mutex mutex;
  static std::map<Key, CompiledProduct> compiled;
  const std::lock_guard lock(mutex);
  // The plan depends on the number of threads.
  const Key key{rows, in, out, bias, omp_get_max_threads()};
  const auto found = compiled.find(key);
  if (found != compiled.end()) return found->second;
  return compiled.emplace(key, compile(rows, in, out, bias)).first->second;
}

/// True where oneDNN's own choice for a weight is panels of 64, which we can stream as well.
bool onednn_takes_panels() {
  static const bool takes = [] {
    if (max_lanes() < 16) return false;
    const memory::desc any({512, 512}, memory::data_type::f32, memory::format_tag::any);
    const dnnl::matmul::desc d(plain(512, 512), any, plain(512, 512));
    const dnnl::matmul::primitive_desc primitive(d, cpu());
    return primitive.weights_desc() == weights_desc(512, 512);
  }();
  return takes;
}

/// Outputs of a panel; a divisor of `group`.
std::size_t panel_width() { return onednn_takes_panels() ? group : vector_width; }

/// True where products of so many rows stream the weights.
bool streams(std::size_t rows) { return rows <= max_streamed_rows; }

/// Writes the rows of a group, each with its `in` inputs, into its panels.
void pack(const float* rows, std::size_t count, std::size_t in, float* data) {
  const std::size_t width = panel_width();
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

void Matrix::prepare(std::size_t rows, bool bias) const {
  if (!streams(rows) && onednn_takes_panels()) product_of(rows, in_, out_, bias);
}

/// sums[rows, 64] (+)= x·Wᵀ of the group's outputs and some of the inputs; rows of x lie `step`
/// numbers apart.
void Matrix::multiply_group(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                            const float* x, std::size_t step, std::size_t rows, float* sums,
                            bool accumulate) const {
  const std::size_t width = panel_width();
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

/// A few rows: every weight is read once, so threads share groups and, of small matrices, stretches
/// of inputs, whose sums are added in order: the result does not depend on the number of threads.
void Matrix::stream(const float* x, std::size_t rows, float* y, const float* bias) const {
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t wanted = (min_pieces + groups - 1) / groups;
  const std::size_t stretch = round_up(std::max(min_stretch, (in_ + wanted - 1) / wanted), block);
  const std::size_t stretches = (in_ + stretch - 1) / stretch;
  std::vector<float> sums(stretches * groups * rows * group);
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * stretches; ++piece) {
    const std::size_t first = piece % stretches * stretch;
    multiply_group(piece / stretches, first, std::min(stretch, in_ - first), x, in_, rows,
                   &sums[piece * rows * group], false);
  }
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t count = std::min(group, out_ - g * group);
    for (std::size_t r = 0; r < rows; ++r) {
      float* out = y + r * out_ + g * group;
      const float* sum = &sums[(g * stretches * rows + r) * group];
      std::copy_n(sum, count, out);
      for (std::size_t i = 1; i < stretches; ++i) {
        for (std::size_t o = 0; o < count; ++o) out[o] += sum[i * rows * group + o];
      }
      if (bias == nullptr) continue;
      for (std::size_t o = 0; o < count; ++o) out[o] += bias[g * group + o];
    }
  }
}

void Matrix::multiply(const float* x, std::size_t rows, float* y, const float* bias) const {
  if (streams(rows)) return stream(x, rows, y, bias);
  if (onednn_takes_panels()) return multiply_by_onednn(x, rows, y, bias);
  multiply_windows(x, in_, rows, y, bias);
}

void Matrix::multiply_by_onednn(const float* x, std::size_t rows, float* y,
                                const float* bias) const {
  const CompiledProduct& product = product_of(rows, in_, out_, bias != nullptr);
  static const dnnl::stream stream(cpu());
  const auto memory_of = [](const memory::desc& d, const float* data) {
    return memory(d, cpu(), const_cast<float*>(data));
  };
  // Reused by every product: the scratchpad of the largest one.
  static thread_local std::vector<std::byte> scratchpad;
  scratchpad.resize(std::max(scratchpad.size(), product.scratchpad.get_size() + 64));
  const auto address = reinterpret_cast<std::uintptr_t>(scratchpad.data());
  void* aligned = reinterpret_cast<void*>(round_up(address, 64));
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory_of(plain(rows, in_), x)},
      {DNNL_ARG_WEIGHTS, memory_of(weights_desc(out_, in_), data_)},
      {DNNL_ARG_DST, memory_of(plain(rows, out_), y)},
      {DNNL_ARG_SCRATCHPAD, memory(product.scratchpad, cpu(), aligned)}};
  if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory_of(plain(1, out_), bias));
  product.matmul.execute(stream, arguments);
}

void Matrix::multiply_windows(const float* x, std::size_t step, std::size_t rows, float* y,
                              const float* bias) const {
  const std::size_t groups = round_up(out_, group) / group;
  const std::size_t tiles = (rows + window_rows - 1) / window_rows;
  // Group by group: a thread keeps one in its cache while the rows go by.
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < groups * tiles; ++piece) {
    const std::size_t first_out = piece / tiles * group;
    const std::size_t count = std::min(group, out_ - first_out);
    const std::size_t first = piece % tiles * window_rows;
    const std::size_t n = std::min(window_rows, rows - first);
    float sums[window_rows * group];
    for (std::size_t k = 0; k < in_; k += window_inputs) {
      multiply_group(piece / tiles, k, std::min(window_inputs, in_ - k), x + first * step, step, n,
                     sums, k > 0);
    }
    for (std::size_t r = 0; r < n; ++r) {
      float* out = y + (first + r) * out_ + first_out;
      std::copy_n(sums + r * group, count, out);
      if (bias == nullptr) continue;
      for (std::size_t o = 0; o < count; ++o) out[o] += bias[first_out + o];
    }
  }
}

void multiply(const Product& p, bool transposed) {
  const auto dim = [](std::size_t n) { return static_cast<dnnl_dim_t>(n); };
  const dnnl_status_t status = dnnl_sgemm('N', transposed ? 'T' : 'N', dim(p.m), dim(p.n), dim(p.k),
                                          1, p.a, dim(p.lda), p.b, dim(p.ldb), 0, p.c, dim(p.ldc));
  KVCAST_ASSERT(status == dnnl_success);
}

}  // namespace kvcast::execute
