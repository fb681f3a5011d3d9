#include "model/execute/machine_probe.h"

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <omp.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/base/order_statistics.h"
#include "model/base/stopwatch.h"
#include "model/execute/matrix.h"
#include "model/execute/vector_lanes.h"

namespace kvcast::execute {
namespace {

/// Independent vectors of sums hide the latency of a multiply-add, and fit 16 registers.
constexpr std::size_t chains = 12;
/// Multiply-adds of one call, whatever the width.
constexpr std::size_t fma_count = chains << 18;

/// Multiply-adds that depend on each other along each chain only.
template <std::size_t lanes>
KVCAST_INLINE float multiply_adds_with(float factor, float term) {
  Vector<lanes> sums[chains];
#pragma GCC unroll 12
  for (std::size_t c = 0; c < chains; ++c) {
    for (std::size_t i = 0; i < lanes; ++i) sums[c][i] = static_cast<float>(c + i);
  }
  for (std::size_t step = 0; step < fma_count / chains / lanes; ++step) {
#pragma GCC unroll 12
    for (std::size_t c = 0; c < chains; ++c) sums[c] = sums[c] * factor + term;
  }
  Vector<lanes> total = {};
#pragma GCC unroll 12
  for (std::size_t c = 0; c < chains; ++c) total += sums[c];
  const Quarter four = fold<lanes>(total);
  return four[0] + four[1] + four[2] + four[3];
}

KVCAST_VECTOR_WIDTHS(float, multiply_adds, multiply_adds_with, (float factor, float term),
                     (factor, term))

KVCAST_VECTOR_CLONES float sum_of(const float* data, std::size_t n) {
  float sums[64] = {};
  for (std::size_t i = 0; i + 64 <= n; i += 64) {
#pragma omp simd
    for (std::size_t j = 0; j < 64; ++j) sums[j] += data[i + j];
  }
  float total = 0;
  for (const float s : sums) total += s;
  return total;
}

/// Runs `work` on all threads over and over; `amount` per second.
template <typename Work>
double rate_of(double seconds, double amount, Work work) {
  volatile float sink = 0;
  std::vector<double> samples;
  const Stopwatch watch;
  while (samples.size() < 5 || watch.seconds() < seconds) {
    float total = 0;
    const Stopwatch one;
#pragma omp parallel reduction(+ : total)
    total += work(static_cast<std::size_t>(omp_get_thread_num()));
    samples.push_back(one.seconds());
    sink = total;
  }
  static_cast<void>(sink);
  return amount / median(std::move(samples));
}

void fill(std::size_t, std::span<float> numbers) {
  std::fill(numbers.begin(), numbers.end(), 0.5F);
}

/// Bytes that are small numbers and small scales in every type.
void fill_stored(std::size_t, std::size_t, std::span<std::byte> blocks) {
  std::fill(blocks.begin(), blocks.end(), std::byte{0x2c});
}

}  // namespace

double measure_fma_rate(double seconds) {
  constexpr int repeats = 16;
  const double flops = 2.0 * fma_count * repeats * omp_get_max_threads();
  return rate_of(seconds, flops, [](std::size_t thread) {
    float total = 0;
    for (int r = 0; r < repeats; ++r) {
      total += multiply_adds(0.999F, 0.001F * static_cast<float>(thread + 1));
    }
    return total;
  });
}

double measure_core_fma_rate() {
  constexpr int repeats = 5;
  volatile float sink = 0;
  std::timespec begin{};
  std::timespec end{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  for (int r = 0; r < repeats; ++r) sink = multiply_adds(0.999F, 0.001F);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  static_cast<void>(sink);
  const double seconds = static_cast<double>(end.tv_sec - begin.tv_sec) +
                         1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
  return 2.0 * fma_count * repeats / seconds;
}

double measure_read_bandwidth(double seconds, std::size_t block_bytes) {
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  const std::size_t share = block_bytes / sizeof(float) / threads;
  const Floats block = allocate_floats(share * threads);
#pragma omp parallel for schedule(static)
  for (std::size_t t = 0; t < threads; ++t) {
    std::fill_n(block.get() + t * share, share, 1.0F);
  }
  // Small blocks are read over and over, so that starting the threads does not count.
  constexpr std::size_t least_bytes = std::size_t{64} << 20;
  const std::size_t times = std::max<std::size_t>(1, least_bytes / block_bytes);
  const double amount = static_cast<double>(share * threads * times) * sizeof(float);
  return rate_of(seconds, amount, [&](std::size_t t) {
    float total = 0;
    for (std::size_t i = 0; i < times; ++i) total += sum_of(block.get() + t * share, share);
    return total;
  });
}

double measure_product_rate(Arithmetic arithmetic) {
  constexpr std::size_t rows = 512;
  constexpr std::size_t width = 1024;
  constexpr int repeats = 3;
  FloatStore store;
  const Matrix matrix =
      arithmetic == Arithmetic::FP32
          ? Matrix(width, width, fill, store)
          : Matrix(width, width, arithmetic == Arithmetic::BF16 ? DType::BF16 : DType::Q8_0,
                   fill_stored, store, arithmetic);
  std::vector<float> x(rows * width, 0.5F);
  std::vector<float> y(rows * width);
  std::vector<double> samples;
  matrix.multiply(x.data(), rows, y.data(), nullptr);
  for (int i = 0; i < repeats; ++i) {
    const Stopwatch watch;
    matrix.multiply(x.data(), rows, y.data(), nullptr);
    samples.push_back(watch.seconds());
  }
  return 2.0 * rows * width * width / median(std::move(samples));
}

double machine_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) {
    throw Error("this machine: the system does not say how much memory it has", Fault::Run);
  }
  return static_cast<double>(pages) * static_cast<double>(page_bytes);
}

namespace {

/// Of /proc/self/status, bytes.
std::optional<double> own_status(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return 1024 * std::stod(line.substr(key.size()));
  }
  return {};
}

}  // namespace

double peak_resident_bytes() { return own_status("VmHWM:").value_or(0); }

std::optional<double> restart_peak_memory() {
  std::ofstream("/proc/self/clear_refs") << 5;
  const std::optional<double> now = own_status("VmRSS:");
  const double peak = peak_resident_bytes();
  // Where the peak cannot be forgotten it may be far above.
  constexpr double most = 1.05;
  if (!now || peak > most * *now) return {};
  return now;
}

int use_threads(int threads) {
  if (threads > 0) omp_set_num_threads(threads);
  return omp_get_max_threads();
}

}  // namespace kvcast::execute
