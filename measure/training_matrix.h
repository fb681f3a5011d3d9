/// Measures steps of training on this machine, each row beside its forecast, into a CSV that grows
/// row by row (measure_matrix.h has runs).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/measure_matrix.h"
#include "model/gradient/gradient.h"

namespace kvcast::measure {

struct TrainingStep {
  std::string model;   ///< catalog name, configuration or checkpoint folder
  std::string method;  ///< plain or mlkv
  std::uint64_t batch = 1;
  std::uint64_t seq_len = 1;
  Recompute recompute = Recompute::None;
};

/// What the matrix spans; an empty list stands for its default.
struct TrainingAxes {
  std::vector<std::string> models = {};
  std::vector<std::string> methods = {};  ///< plain
  std::vector<std::uint64_t> batch = {};
  std::vector<std::uint64_t> seq_len = {};
  std::vector<Recompute> recompute = {};  ///< all three
  bool quick = false;                     ///< one model, a short sequence
};

/// All combinations of models and methods that train, models slowest. Throws Error when a model
/// cannot be read or has fewer positions, and when none trains.
std::vector<TrainingStep> training_matrix(const TrainingAxes& axes, const Catalog& catalog);

/// Columns as measurements of training have them (data/measurements/README.md): the median of the
/// rounds after a step that is not timed, what the trainer adds to the resident memory at most, and
/// the forecasts of both by the hardware. `options.run_ranks` and `rank_hardware` have no meaning.
/// Throws Error as measure() does.
MeasuredRows measure_training(const std::vector<TrainingStep>& steps, const Catalog& catalog,
                              const MeasureOptions& options);

/// Of a CSV that measure_training wrote: predicted over measured peak memory - 1.
std::vector<double> peak_memory_errors(const std::filesystem::path& csv);

}  // namespace kvcast::measure
