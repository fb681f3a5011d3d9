/// A grid of servers: the configurations of a sweep, each under several schedulers and rates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reports/plot/plot.h"
#include "reports/sweep/sweep.h"
#include "simulate/serving/serving.h"

namespace kvcast::reports {

struct ServingSweep {
  const SweepGrid& grid;                ///< of one size
  std::vector<std::string> schedulers;  ///< as make_model_server takes them; "": the engine's
  std::vector<double> rates;            ///< requests a second; 0: the requests' own times
  /// The workload at a rate; called from several threads.
  std::function<std::unique_ptr<simulate::RequestSource>(double rate)> open;
  std::string workload;  ///< in words that change with it
  simulate::Slo slo;

  std::uint64_t num_points() const {
    return grid.num_configurations() * schedulers.size() * rates.size();
  }
};

/// Rows in the order of configurations, schedulers, rates; resumable, as run_sweep.
SweepResult run_serving_sweep(const ServingSweep& sweep, const SweepOptions& options);

/// Mean TTFT over the rate, a line for each configuration and scheduler, from the rows of a file.
Plot serving_sweep_plot(const ServingSweep& sweep, const std::filesystem::path& csv);

}  // namespace kvcast::reports
