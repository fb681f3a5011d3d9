/// Measures the machine it runs on: the factors of a hardware file.
///
/// The executor runs the passes of a probe model, a small Llama with 24 heads, whose shape no
/// catalog model has; each factor is the one that makes the roofline's formula give the measured
/// time of the operators that depend on it most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "roofline/hardware.h"

namespace kvcast::execute {
class Messenger;
}

namespace kvcast::measure {

struct CalibrationOptions {
  bool quick = false;  ///< fewer rounds and sizes: seconds instead of a minute
  int rounds = 0;      ///< medians of so many; 0: 16, with `quick` 3
  int threads = 0;     ///< 0: as OpenMP has them
  /// Not null: all ranks calibrate at the same time, as they run together later. Decode steps are
  /// measured one rank after the other. The link between ranks 0 and 1 is measured too.
  execute::Messenger* messenger = nullptr;
  /// Called before each measurement with those done and all; for progress.
  std::function<void(std::uint64_t done, std::uint64_t all)> on_step;
};

/// One quantity over the rounds, in base units.
struct Measurement {
  std::string name;  ///< "linear 64 rows", "streaming read", ...
  std::string unit;  ///< "FLOP/s", "bytes/s", "s", or "" of a ratio
  std::vector<double> rounds;

  double median() const;
  double low() const;
  double high() const;
  /// How uncertain the median is, relative to it: the distance between the medians of the first and
  /// the second half of the rounds, or the standard error of the median (from order statistics),
  /// whichever is larger.
  double unrest() const;
};

/// Products of [rows, in] by [out, in] transposed.
struct MatrixRate {
  std::uint64_t rows = 0;
  std::uint64_t out = 0;
  std::uint64_t in = 0;
  int threads = 0;
  Measurement rate;
};

struct Calibration {
  std::string date;  ///< UTC, 2026-01-31T12:00:00Z
  std::string processor;
  int threads = 0;
  std::size_t ranks = 1;  ///< that calibrated together
  roofline::Hardware hardware;
  std::vector<Measurement> measurements;  ///< what the hardware's numbers are made of
  std::vector<Measurement> by_threads;    ///< roofs of fewer threads
  std::vector<MatrixRate> matrix_rates;   ///< by shape and number of threads

  /// The measurement whose median is least settled.
  const Measurement& noisiest() const;
};

/// Medians have settled where unrest is at most this.
inline constexpr double settled = 0.2;

/// Throws Error when the machine has less memory than the probe model needs.
Calibration calibrate(const CalibrationOptions& options);

/// Adds a measured share of a bandwidth for more rows than those before. More rows never take less
/// time, which hardware files must say too: where noise has it otherwise, they take hardly more.
void add_share(std::vector<roofline::FactorAt>& shares, std::uint64_t rows, double share);

/// A hardware file, as read_hardware reads it, with the measurements under `calibration`.
std::string to_json(const Calibration& calibration, const std::string& name);

}  // namespace kvcast::measure
