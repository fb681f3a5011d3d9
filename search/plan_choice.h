/// Plans: the ways to spread a model over devices (tensor, pipeline, expert and data parallelism,
/// KV-Runahead), and which of them serve a goal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "roofline/estimator.h"

namespace kvcast::search {

enum class PlanGoal {
  Ttft,        ///< the least time to the first token
  Tpot,        ///< the least time per token
  Throughput,  ///< the most tokens a second of each device
  Fits,        ///< the fewest devices
};
/// "ttft", "tpot", "throughput", "fits". Throws Error with the nearest word.
PlanGoal parse_plan_goal(std::string_view word);

struct PlanRequest {
  /// Its methods without kvr. Of its parallelism sequence_parallel counts, of the plans that can
  /// have it, as its micro-batches do.
  roofline::Configuration configuration;
  roofline::DesignPoint point;
  std::uint64_t most_devices = 8;
  PlanGoal goal = PlanGoal::Ttft;
  std::optional<double> most_ttft_s = {};
  std::optional<double> most_tpot_s = {};
};

struct Plan {
  Parallelism parallelism;
  std::uint64_t runahead = 1;  ///< ranks of kvr, each such a group of devices
  roofline::Estimate estimate = {};
  double tokens_per_s = 0;  ///< of the whole batch, over the whole request
  bool on_front = false;    ///< no plan is better in one of TTFT, TPOT and throughput a device
                            ///< and as good in the others
  std::string reason = {};  ///< why it is rejected, or what beats it; empty: the best

  std::uint64_t devices() const { return parallelism.devices() * runahead; }
  double tokens_per_s_per_device() const { return tokens_per_s / static_cast<double>(devices()); }
};

struct Plans {
  std::vector<Plan> fit;       ///< that meet the limits, the best first
  std::vector<Plan> rejected;  ///< the others, with the reason
};

/// All plans of powers of two, up to most_devices. Throws Error when not even one device can be
/// forecast, or the platform has fewer devices.
Plans choose_plan(const PlanRequest& request);

/// "tp 4, pp 2", "one device"
std::string to_string(const Plan& plan);
/// The methods of a plan's forecast: those asked for, and kvr with a searched partition, above
/// most_searched_ranks with even parts.
std::vector<MethodSpec> methods_of(const Plan& plan, std::vector<MethodSpec> methods);
/// Whether the request's micro-batches hold for it.
bool takes_micro_batches(const Plan& plan);
/// Output tokens of a batch over the time of its requests, prefill included.
double tokens_per_s(const roofline::DesignPoint& point, double ttft_s, double tpot_s);

}  // namespace kvcast::search
