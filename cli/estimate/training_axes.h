/// `--train` of `kvcast sweep`: its axes.
#pragma once

#include <string>

#include "cli/frame/arguments.h"
#include "reports/sweep/training_sweep.h"

namespace kvcast::cli {

struct TrainingAxes {
  bool train = false;
  std::string seq_len;
  std::string recompute = "none";
  std::string zero = "0";
  std::string virtual_stages = "1";
  double dropout = 0;
  std::string gradient_dtype;
  std::string state_dtype = "fp32";

  void add_to(Command command);
  /// Sequences take the place of prompts. Throws Error for flags that do not go together.
  void set_sizes(reports::SweepSpec& spec) const;
  /// Throws Error naming the flag for every wrong value.
  reports::TrainingSweep over(const reports::SweepGrid& grid) const;
};

}  // namespace kvcast::cli
