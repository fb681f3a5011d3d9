/// `kvcast validate --serving`: workloads run on this machine beside their forecasts.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/workload_flags.h"
#include "cli/validate/validate_parts.h"

namespace kvcast::cli {

struct ServingFlags {
  bool serving = false;
  std::vector<std::string> schedulers;
  std::string loads = "0.3,0.6,0.9";
  std::string blocks = "4096";
  WorkloadFlags workload;

  void add_to(Command command);
};

void validate_serving(const ValidateOptions& o, const ServingFlags& flags, const Globals& globals);

}  // namespace kvcast::cli
