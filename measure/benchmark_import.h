/// Hardware descriptions from a CSV of micro-benchmarks that another program ran.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "roofline/hardware.h"

namespace kvcast::measure {

/// One benchmark at one size: what it does once, and how long that takes.
struct Benchmark {
  std::string name;   ///< "matmul", "copy", ...
  std::string dtype;  ///< as the file spells it; empty for capacities
  std::string shape;  ///< "4096x4096x11008"
  double flops = 0;
  double bytes = 0;
  double median_s = 0;
  double q1_s = 0;
  double q3_s = 0;
  std::uint64_t repeats = 0;

  /// FLOP/s of benchmarks with FLOPs, else bytes per second.
  double rate() const { return (flops > 0 ? flops : bytes) / median_s; }
  /// The middle half of the times, over the median.
  double spread() const { return (q3_s - q1_s) / median_s; }
};

struct ImportedBenchmarks {
  std::string device;
  std::string software;
  std::string driver;
  std::string date;
  std::vector<Benchmark> rows;  ///< those with times
  /// What the rows say, measured; what they do not, as `base` has it.
  roofline::Hardware hardware;

  /// The row with the largest spread.
  const Benchmark& noisiest() const;
};

/// Reads what tools/gpu_microbenchmarks.py writes (columns: data/hardware/README.md). Factors are
/// shares of the peaks of `base`; without one, of the best rates in the file.
/// Throws Error naming file and line: missing or unknown columns, unknown benchmarks or dtypes,
/// times that are not above zero or not in order, the same benchmark twice, rows of two devices,
/// rates above the peak, a benchmark without which the hardware cannot be described.
ImportedBenchmarks import_benchmarks(const std::filesystem::path& csv,
                                     const roofline::Hardware* base);

/// A hardware file called `name`, with the rows under `calibration`.
std::string to_json(const ImportedBenchmarks& imported, const std::string& name);

}  // namespace kvcast::measure
