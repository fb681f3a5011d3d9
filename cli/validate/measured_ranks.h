/// The rows of `validate --measure` that ranks run: `mpirun -n P kvcast run` of this same program.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/frame/command.h"
#include "measure/measure_matrix.h"

namespace kvcast::cli {

/// The file of --rank-hardware.
struct RankHardware {
  std::string file;
  roofline::Hardware hardware;
  std::uint64_t ranks = 2;  ///< that calibrated at the same time
  int threads = 1;          ///< of each
};

/// How a hardware file was calibrated; no value where that is not in the file.
struct CalibratedWith {
  std::optional<std::uint64_t> ranks;
  std::optional<std::uint64_t> threads;  ///< of each
};
CalibratedWith calibrated_with(const Catalog& catalog, const std::string& file);

/// Throws Error when the file cannot be read or has no link between ranks.
RankHardware read_rank_hardware(const Catalog& catalog, const std::string& file);

/// Throws Error when a point needs ranks and `file` is null or a calibration of another number of
/// ranks, and (Fault::Run) when this machine cannot start ranks.
void check_rank_points(const std::vector<measure::MeasurePoint>& points, const RankHardware* file);

/// Runs a point once, and stops early when `options`, which must outlive it, say so. Throws Error
/// (Fault::Run) with the message of the run.
std::function<measure::RunSeconds(const measure::MeasurePoint&)> rank_runner(
    const RankHardware& file, const measure::MeasureOptions& options, const Globals& globals);

}  // namespace kvcast::cli
