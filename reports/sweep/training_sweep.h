/// A grid of training steps: the configurations and sizes of a sweep, each under several grades of
/// recomputation, stages of ZeRO and virtual stages of a pipeline.
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
  std::vector<std::uint64_t> virtual_stages;
  TrainingOptions options = {};  ///< of all points

  std::uint64_t num_points() const {
    return grid.num_points() * recompute.size() * zero.size() * virtual_stages.size();
  }
};

/// Throws Error, the first row's, unless a row is possible.
void check_any_possible(const TrainingSweep& sweep);

/// Rows in the order of configurations, grades, stages, virtual stages, sizes; resumable, as
/// run_sweep.
SweepResult run_training_sweep(const TrainingSweep& sweep, const SweepOptions& options);

/// Tokens a second over the sequence's length, a line for each configuration, batch, grade and
/// stages, from the rows of a file.
Plot training_sweep_plot(const TrainingSweep& sweep, const std::filesystem::path& csv);

}  // namespace kvcast::reports
