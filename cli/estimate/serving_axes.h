/// `--serving` of `kvcast sweep`: its axes and its workload.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/serving_output.h"
#include "cli/frame/workload_flags.h"
#include "reports/sweep/serving_sweep.h"

namespace kvcast::cli {

struct ServingAxes {
  bool serving = false;
  std::vector<std::string> schedulers;
  std::string rates;
  std::string slo;
  WorkloadFlags workload;

  void add_to(Command command);
  /// Throws Error naming the flag for every wrong value, for a line of --requests that is wrong,
  /// and for axes of sizes, which a workload has of its own. `searches`: for the highest rate.
  reports::ServingSweep over(const reports::SweepGrid& grid, const Globals& globals,
                             bool searches = false) const;
};

/// "0.5,1,2" or "1..64:x2": numbers above 0. Throws Error naming the flag.
std::vector<double> parse_rates(const std::string& text, const char* flag);

}  // namespace kvcast::cli
