#include "model/execute/matrix.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "model/error.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {
namespace {

using dnnl::memory;
using Dim = memory::dim;

constexpr std::size_t panel = 64;  ///< outputs side by side
constexpr std::size_t block = 16;  ///< inputs are padded to a multiple of it
/// Rows up to which a product streams panels itself, faster than oneDNN: the first of them bring a
/// piece of the weights into the second-level cache for the others.
constexpr std::size_t max_streamed_rows = 4 * block_rows;
/// Likewise a row-major weight, which is no faster for more than one tile's rows.
constexpr std::size_t max_rows_of_dots = block_rows;
/// Rows of a tile of multiply_windows; a multiple of block_rows.
constexpr std::size_t window_rows = 24;
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

memory::desc weights_desc(std::size_t out, std::size_t in, bool panels) {
  const auto tag = panels ? memory::format_tag::BA16a64b : memory::format_tag::ba;
  return {{static_cast<Dim>(in), static_cast<Dim>(out)}, memory::data_type::f32, tag};
}

/// A product x[rows, in]·Wᵀ ready to run, and the memory it works in.
struct CompiledProduct {
  dnnl::matmul matmul;
  memory::desc scratchpad;
};

CompiledProduct compile(std::size_t rows, std::size_t in, std::size_t out, bool bias, bool panels) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto x = plain(rows, in);
  const auto w = weights_desc(out, in, panels);
  const auto y = plain(rows, out);
  const auto d = bias ? dnnl::matmul::desc(x, w, plain(1, out), y) : dnnl::matmul::desc(x, w, y);
  const dnnl::matmul::primitive_desc primitive(d, attributes, cpu());
  return {dnnl::matmul(primitive), primitive.scratchpad_desc()};
}

/// oneDNN keeps compiled kernels, but finding one there takes longer than a small product.
const CompiledProduct& product_of(std::size_t rows, std::size_t in, std::size_t out, bool bias,
                                  bool panels) {
  using Key = std::tuple<std::size_t, std::size_t, std::size_t, bool, int>;
  static std::mutex mutex;
  static std::map<Key, CompiledProduct> compiled;
  const std::lock_guard lock(mutex);
  // The plan depends on the number of threads.
  const Key key{rows, in, out, bias, omp_get_max_threads()};
  const auto found = compiled.find(key);
  if (found != compiled.end()) return found->second;
  return compiled.emplace(key, compile(rows, in, out, bias, panels)).first->second;
}

/// True where oneDNN's own choice for a weight is the panels that we can stream as well.
bool prefers_panels() {
  static const bool prefers = [] {
    const memory::desc any({512, 512}, memory::data_type::f32, memory::format_tag::any);
    const dnnl::matmul::desc d(plain(512, 512), any, plain(512, 512));
    const dnnl::matmul::primitive_desc primitive(d, cpu());
    return primitive.weights_desc() == weights_desc(512, 512, true);
  }();
  return prefers;
}

/// Writes rows [first, first + rows) of a weight into their panel.
void pack(const float* rows, std::size_t count, std::size_t in, std::size_t first, float* data) {
  const std::size_t padded_in = round_up(in, block);
  float* start = data + first / panel * (padded_in * panel) + first % panel;
  // Eight inputs at a time keep the written lines in the cache.
  for (std::size_t k = 0; k < in; k += 8) {
    const std::size_t end = std::min(in, k + 8);
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t i = k; i < end; ++i) start[i * panel + r] = rows[r * in + i];
    }
  }
}

}  // namespace

Matrix::Matrix(std::size_t out, std::size_t in, const Fill& fill, FloatStore& store)
    : out_(out), in_(in), panels_(prefers_panels()) {
  const std::size_t padded_in = panels_ ? round_up(in, block) : in;
  const std::size_t padded_out = panels_ ? round_up(out, panel) : out;
  data_ = store.take(padded_in * padded_out);
  std::exception_ptr failure;
#pragma omp parallel
  {
    std::vector<float> rows;
#pragma omp for schedule(static)
    for (std::size_t first = 0; first < out; first += panel) {
      const std::size_t count = std::min(panel, out - first);
      try {
        rows.resize(panels_ ? panel * in : 0);
        if (!panels_) {
          fill(first, {data_ + first * in, count * in});
          continue;
        }
        float* target = data_ + first / panel * (padded_in * panel);
        if (count < panel) std::fill_n(target, padded_in * panel, 0.0F);
        std::fill_n(target + in * panel, (padded_in - in) * panel, 0.0F);
        fill(first, {rows.data(), count * in});
        pack(rows.data(), count, in, first, data_);
      } catch (...) {
#pragma omp critical(kvcast_matrix)
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::uint64_t Matrix::bytes() const {
  const std::size_t padded = panels_ ? round_up(in_, block) * round_up(out_, panel) : in_ * out_;
  return padded * sizeof(float);
}

void Matrix::prepare(std::size_t rows, bool bias) const {
  if (!streams(rows)) product_of(rows, in_, out_, bias, panels_);
}

bool Matrix::streams(std::size_t rows) const {
  return rows <= (panels_ ? max_streamed_rows : max_rows_of_dots);
}

/// A few rows: every weight is read once, so threads share panels and, of small matrices, stretches
/// of inputs, whose sums are added in order: the result does not depend on the number of threads.
void Matrix::stream_panels(const float* x, std::size_t rows, float* y, const float* bias) const {
  const std::size_t padded_in = round_up(in_, block);
  const std::size_t panels = round_up(out_, panel) / panel;
  const std::size_t wanted = (min_pieces + panels - 1) / panels;
  const std::size_t stretch = round_up(std::max(min_stretch, (in_ + wanted - 1) / wanted), block);
  const std::size_t stretches = (in_ + stretch - 1) / stretch;
  std::vector<float> sums(stretches * panels * rows * panel);
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < panels * stretches; ++piece) {
    const std::size_t p = piece / stretches;
    const std::size_t first = piece % stretches * stretch;
    multiply_block({.m = rows,
                    .n = panel,
                    .k = std::min(stretch, in_ - first),
                    .a = x + first,
                    .lda = in_,
                    .b = data_ + (p * padded_in + first) * panel,
                    .ldb = panel,
                    .c = &sums[piece * rows * panel],
                    .ldc = panel});
  }
  for (std::size_t p = 0; p < panels; ++p) {
    const std::size_t count = std::min(panel, out_ - p * panel);
    for (std::size_t r = 0; r < rows; ++r) {
      float* out = y + r * out_ + p * panel;
      const float* sum = &sums[(p * stretches * rows + r) * panel];
      std::copy_n(sum, count, out);
      for (std::size_t i = 1; i < stretches; ++i) {
        for (std::size_t o = 0; o < count; ++o) out[o] += sum[i * rows * panel + o];
      }
      if (bias == nullptr) continue;
      for (std::size_t o = 0; o < count; ++o) out[o] += bias[p * panel + o];
    }
  }
}

void Matrix::stream_rows(const float* x, std::size_t rows, float* y, const float* bias) const {
#pragma omp parallel for schedule(static)
  for (std::size_t o = 0; o < out_; ++o) {
    for (std::size_t r = 0; r < rows; ++r) {
      y[r * out_ + o] =
          dot_row(data_ + o * in_, x + r * in_, in_) + (bias != nullptr ? bias[o] : 0.0F);
    }
  }
}

void Matrix::multiply(const float* x, std::size_t rows, float* y, const float* bias) const {
  if (streams(rows)) {
    return panels_ ? stream_panels(x, rows, y, bias) : stream_rows(x, rows, y, bias);
  }
  const CompiledProduct& product = product_of(rows, in_, out_, bias != nullptr, panels_);
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
      {DNNL_ARG_WEIGHTS, memory_of(weights_desc(out_, in_, panels_), data_)},
      {DNNL_ARG_DST, memory_of(plain(rows, out_), y)},
      {DNNL_ARG_SCRATCHPAD, memory(product.scratchpad, cpu(), aligned)}};
  if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory_of(plain(1, out_), bias));
  product.matmul.execute(stream, arguments);
}

void Matrix::multiply_windows(const float* x, std::size_t step, std::size_t rows, float* y,
                              const float* bias) const {
  if (!panels_) {
    const Floats copy = allocate_floats(rows * in_);
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(x + r * step, in_, copy.get() + r * in_);
    return multiply(copy.get(), rows, y, bias);
  }
  const std::size_t padded_in = round_up(in_, block);
  const std::size_t panels = round_up(out_, panel) / panel;
  const std::size_t tiles = (rows + window_rows - 1) / window_rows;
  // Panel by panel: a thread keeps one in its cache while the windows go by.
#pragma omp parallel for schedule(static)
  for (std::size_t piece = 0; piece < panels * tiles; ++piece) {
    const std::size_t first_out = piece / tiles * panel;
    const std::size_t count = std::min(panel, out_ - first_out);
    const std::size_t first = piece % tiles * window_rows;
    const std::size_t n = std::min(window_rows, rows - first);
    float sums[window_rows * panel];
    multiply_block({.m = n,
                    .n = panel,
                    .k = in_,
                    .a = x + first * step,
                    .lda = step,
                    .b = data_ + first_out * padded_in,
                    .ldb = panel,
                    .c = sums,
                    .ldc = panel});
    for (std::size_t r = 0; r < n; ++r) {
      float* out = y + (first + r) * out_ + first_out;
      std::copy_n(sums + r * panel, count, out);
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
