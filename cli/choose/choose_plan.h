/// `kvcast choose devices --objective`: plans of several kinds of parallelism.
#pragma once

#include <string>

#include "cli/frame/command.h"
#include "cli/simulate/parallel_options.h"

namespace kvcast::cli {

struct PlanFlags {
  std::string objective;  ///< empty: no plans
  std::string most_ttft;
  std::string most_tpot;
  std::string batch = "1";
  std::string output_len = "128";
  std::string engine = "ideal";
  std::string platform;
  std::string plot;
  std::string csv;

  void add_to(Command command);
};

void choose_plan(const PlanFlags& flags, const ParallelOptions& parallel,
                 const std::string& prompt_len, std::uint64_t most_devices, bool json,
                 const Globals& globals);

}  // namespace kvcast::cli
