/// Traffic of others, and links and devices that are not what they should be: many runs, each with
/// its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/simulation.h"

namespace kvcast::simulate {

struct NoiseSpec {
  std::uint64_t flows = 0;  ///< in each trial, each from a random device to a neighbour
  std::uint64_t bytes = 0;  ///< of each flow
  /// Flows that start a second, with exponentially distributed gaps; 0: all at random moments of
  /// the quiet run.
  double rate = 0;
  /// Each link has a random share of its bandwidth, between 1 - jitter and 1, for the whole trial.
  double jitter = 0;
  /// So many devices, drawn anew in each trial, compute `slowdown` times as long.
  std::uint64_t stragglers = 0;
  double slowdown = 0;
  std::uint64_t seed = 1;
  std::uint64_t trials = 100;
};

/// "flows=20,bytes=1e8,rate=50,jitter=0.1,seed=7,trials=1000", each entry at most once. Throws
/// Error: unknown entries with the nearest, numbers out of range, flows without bytes, stragglers
/// without a slowdown, none of flows, jitter and stragglers.
NoiseSpec parse_noise(std::string_view text);
/// As parse_noise takes it, always with the seed and the trials.
std::string to_string(const NoiseSpec& spec);

/// The trial's background flows, bandwidth and compute factors, in addition to those of `quiet`.
/// Neighbours are the devices before and after, the first and the last included: those that
/// exchange keys and values. Stragglers are among the ranks that have something to do.
RunOptions noisy_options(const NoiseSpec& spec, std::uint64_t trial, const Simulation& simulation,
                         const RunOptions& quiet, double quiet_makespan_s);

struct NoiseResult {
  std::vector<double> ttft_s;  ///< one for each trial
  double mean_s = 0;
  double deviation_s = 0;  ///< standard deviation of a trial
};

/// The same result with any number of threads; 0: as many as the machine has. `on_trial` is told
/// how many trials are done, from one thread at a time.
NoiseResult run_noise(const Simulation& simulation, const RunOptions& quiet, const NoiseSpec& spec,
                      const std::function<void(std::uint64_t)>& on_trial = {},
                      unsigned threads = 0);

}  // namespace kvcast::simulate
