/// Workloads and servers of the tests of serving.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "simulate/serving/requests.h"
#include "simulate/serving/serving.h"
#include "simulate/serving/serving_scenario.h"

namespace kvcast::simulate {

/// (arrival, prompt, output) in order of arrival.
inline std::vector<ServingRequest> requests_of(
    const std::vector<std::tuple<double, std::uint64_t, std::uint64_t>>& list) {
  std::vector<ServingRequest> requests;
  for (const auto& [arrival, prompt, output] : list) {
    requests.push_back({requests.size(), arrival, prompt, output});
  }
  return requests;
}

/// What became of each request, by its id; NaN where it was rejected.
struct Served {
  ServingTimes times;
  std::vector<double> first;
  std::vector<double> finish;
};

inline Served serve_all(const ServingSetup& setup, std::vector<ServingRequest> requests,
                        const ServingWatch& also = {}) {
  Served served;
  served.first.resize(requests.size(), std::nan(""));
  served.finish = served.first;
  RequestList list(std::move(requests), setup.servers.settings.request_block_tokens);
  ServingWatch watch = also;
  watch.on_finished = [&](const Sequence& s) {
    served.first[s.request.id] = s.first_token_s;
    served.finish[s.request.id] = s.last_token_s;
    if (also.on_finished) also.on_finished(s);
  };
  served.times = serve(setup, list, {}, watch);
  return served;
}

/// One server whose steps have explicit costs.
inline ServingSetup one_server(const SchedulerSettings& settings, const ExplicitCost& cost) {
  ServingSetup setup;
  setup.servers = {settings, std::make_shared<ExplicitCost>(cost), 1};
  return setup;
}

inline ExplicitCost cost_of(double base_s, double prefill_token_s = 0, double decode_seq_s = 0) {
  ExplicitCost cost;
  cost.base_s = base_s;
  cost.prefill_token_s = prefill_token_s;
  cost.decode_seq_s = decode_seq_s;
  return cost;
}

}  // namespace kvcast::simulate
