/// Scenarios with explicit compute times, from JSON, and what a parallel prefill takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "simulate/platform.h"
#include "simulate/schedules.h"
#include "simulate/simulation.h"

namespace kvcast::simulate {

/// A schedule on a platform, and the options of its run.
struct Scenario {
  PrefillWork work;
  Platform platform;
  RunOptions options;
};

/// Reads this form, in which lists have an entry for each rank:
///     {"schedule": "kvr", "topology": "switch", "devices": 2, "layers": 4,
///      "link_bytes_per_s": 1e9, "link_latency_s": 5e-5, "bytes_per_token_layer": 16384,
///      "partition_tokens": [512, 512], "compute_before_exchange_s": [3.4e-4, 3.4e-4],
///      "compute_after_exchange_s": [1.38e-3, 1.41e-3], "send_order": "async",
///      "background_flows": [{"start_s": 0, "source": 0, "destination": 1, "bytes": 1000000}]}
/// `send_order` may be left out (fifo), and so may background_flows, all_gather (ring) and
/// message_overhead_s (0). Throws Error naming the place: unknown keys, lists of other lengths than
/// `devices`, numbers that are not above zero (times and latencies: below zero), devices that do
/// not exist.
Scenario parse_scenario(const nlohmann::json& document, const std::string& place);
Scenario read_scenario(const std::filesystem::path& path);

/// The largest relative change of TTFT when each bandwidth and each rank's computations change
/// by up to 1e-9 of themselves, over three fixed choices, each of which is one more run. A
/// well-conditioned run answers with about 1e-9. With background flows, tsp with asynchronous sends
/// can be chaotic, and then its digits mean nothing. `ttft_s`: of the run with these options.
double ttft_sensitivity(const Simulation& simulation, const RunOptions& options, double ttft_s);
/// A TTFT is ill-conditioned if 1e-9 of its inputs moves it by more than this share.
inline constexpr double ill_conditioned = 1e-4;

}  // namespace kvcast::simulate
