/// What a server's users see, as JSON and as text: of simulations and of runs.
#pragma once

#include <string>

#include "cli/frame/result.h"
#include "simulate/serving/model_server.h"
#include "simulate/serving/serving.h"

namespace kvcast::cli {

/// The contract's keys.
ordered_json serving_json(const simulate::ServingTimes& times);
/// The lines of a person's answer.
std::string serving_text(const simulate::ServingTimes& times, const simulate::Slo& slo);

/// "ttft=2 s,tpot=100 ms,e2e=..,attainment=0.9"; plain numbers are seconds.
struct Objective {
  simulate::Slo slo;
  double attainment = 0.9;  ///< share of requests that must keep it; DistServe's (OSDI 2024)
};
/// Throws Error; also for an attainment where nothing is searched for (`searches`).
Objective parse_objective(const std::string& text, bool searches);

}  // namespace kvcast::cli
