/// A grid of training steps: the configurations and sizes of a sweep, each under several grades of
/// recomputation and stages of ZeRO.
#pragma once

#include <cstdint>
#include <vector>

#include "reports/plot/plot.h"
#include "reports/sweep/sweep.h"
#include "roofline/training_forecast.h"

namespace kvcast::reports {

struct TrainingSweep {
  const SweepGrid& grid;  ///< its prompt lengths are those of sequences; one output length
  std::vector<Recompute> recompute;
  std::vector<roofline::ShardedStates> zero;
  TrainingOptions options = {};  ///< of all points

  std::uint64_t num_points() const { return grid.num_points() * recompute.size() * zero.size(); }
};

/// Rows in the order of configurations, grades, stages, sizes; resumable, as run_sweep.
SweepResult run_training_sweep(const TrainingSweep& sweep, const SweepOptions& options);

/// Tokens a second over the sequence's length, a line for each configuration, batch and grade, from
/// the rows of a file.
Plot training_sweep_plot(const TrainingSweep& sweep, const std::filesystem::path& csv);

}  // namespace kvcast::reports
