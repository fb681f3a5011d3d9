#include "model/execute/weight_reads.h"

#include <algorithm>

#include "model/base/stopwatch.h"
#include "model/execute/machine_probe.h"
#include "model/execute/stored_blocks.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast::execute {
namespace {

/// Of each type; with fp32's they are more than caches hold.
constexpr std::size_t bytes_of_type = beyond_caches / 2;
constexpr std::size_t read_inputs = 1536;
constexpr std::size_t read_outputs = bytes_of_type / sizeof(float) / read_inputs;
/// Of a sample, unless all matrices are read in less.
constexpr double least_read_seconds = 0.02;

}  // namespace

WeightReads::WeightReads()
    : fp32_(
          read_outputs, read_inputs,
          [](std::size_t, std::span<float> numbers) {
            std::fill(numbers.begin(), numbers.end(), 0.5F);
          },
          store_),
      // Strips are a little larger than what they hold, and the last matrix may stand out.
      stored_floats_(bytes_of_type / sizeof(float) / 4 * 5),
      stored_(allocate_floats(stored_floats_)) {}

std::vector<std::vector<double>> WeightReads::measure(DType dtype, Arithmetic arithmetic,
                                                      std::span<const std::size_t> rows,
                                                      int rounds) {
  if (arithmetic == Arithmetic::INT8 &&
      (!has_bytes(dtype) || narrow_kernels(arithmetic) == NarrowKernels::None)) {
    return {};
  }
  // Matrices of one shape, whatever the type: threads share them alike. Of a narrow type there are
  // more, which fill the memory, so that none is in a cache when its turn comes again.
  const std::size_t matrix_bytes = read_outputs * row_bytes(dtype, read_inputs);
  const std::size_t count = (bytes_of_type + matrix_bytes / 2) / matrix_bytes;
  // Bytes that are small numbers and small scales in every type.
  const Matrix::FillStored fill = [](std::size_t, std::size_t, std::span<std::byte> blocks) {
    std::fill(blocks.begin(), blocks.end(), std::byte{0x2c});
  };
  FloatStore store({stored_.get(), stored_floats_});
  std::vector<Matrix> stored;
  for (std::size_t i = 0; i < count; ++i) {
    stored.emplace_back(read_outputs, read_inputs, dtype, fill, store, arithmetic);
  }
  const std::size_t most_rows = *std::max_element(rows.begin(), rows.end());
  const std::vector<float> x(most_rows * read_inputs, 0.5F);
  std::vector<float> y(most_rows * read_outputs);
  const auto read = [&](const Matrix& matrix, std::size_t row_count) {
    matrix.multiply(x.data(), row_count, y.data(), nullptr);
    return static_cast<double>(matrix.bytes());
  };
  std::size_t next = 0;
  // A slow type's matrix is a sample; of a fast one several are, where the clock counts.
  const auto stored_bytes_per_second = [&](std::size_t row_count) {
    double bytes = 0;
    const Stopwatch watch;
    for (std::size_t i = 0; i < count && watch.seconds() < least_read_seconds; ++i) {
      bytes += read(stored[next], row_count);
      next = (next + 1) % count;
    }
    return bytes / watch.seconds();
  };
  stored_bytes_per_second(most_rows);
  std::vector<std::vector<double>> ratios;
  for (const std::size_t row_count : rows) {
    std::vector<double>& of_rows = ratios.emplace_back();
    for (int r = 0; r < rounds; ++r) {
      const Stopwatch watch;
      const double bytes = read(fp32_, row_count);
      const double in_fp32 = bytes / watch.seconds();
      of_rows.push_back(stored_bytes_per_second(row_count) / in_fp32);
    }
  }
  return ratios;
}

}  // namespace kvcast::execute
