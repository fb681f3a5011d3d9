/// `kvcast run --requests`: a workload executed on the CPU.
#pragma once

#include <string>

#include "cli/frame/workload_flags.h"
#include "cli/run/run_job.h"

namespace kvcast::cli {

struct RunRequestsFlags {
  WorkloadFlags workload;
  std::string scheduler;
  std::string slo;
  std::string csv;
  std::string trace;
  std::string steps;
  bool no_wait = false;

  void add_to(Command command);
  bool is_given() const { return workload.is_file() || !workload.arrivals.empty(); }
};

void run_requests(const RunOptions& o, const RunRequestsFlags& flags, const Globals& globals);

}  // namespace kvcast::cli
