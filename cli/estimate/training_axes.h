/// `--train` of `kvcast sweep`.
#pragma once

#include <string>

#include "cli/frame/arguments.h"
#include "reports/sweep/training_sweep.h"

namespace kvcast::cli {

struct TrainingAxes {
  bool train = false;
  std::string loss_chunks = "1";
  double dropout = 0;
  std::string gradient_dtype;
  std::string state_dtype = "fp32";

  void add_to(Command command);
  /// Sequences take the place of prompts. Throws Error for axes and flags that do not go together.
  void set_sizes(reports::SweepSpec& spec) const;
  /// With the grid's axes of training. Throws Error naming the flag for every wrong value.
  reports::TrainingSweep over(const reports::SweepGrid& grid) const;
};

}  // namespace kvcast::cli
