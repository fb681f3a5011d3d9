// Schedulers against tests/oracle/serving_reference.py, a second simulator that was written from
// the engines' rules alone.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/near.h"
#include "tests/simulate/serving_requests.h"

using namespace kvcast;
using namespace kvcast::simulate;
using nlohmann::json;

namespace {

std::vector<ServingRequest> requests_of(const json& list) {
  std::vector<ServingRequest> requests;
  for (const json& r : list) {
    ServingRequest request{requests.size(), r[0], r[1], r[2]};
    if (r.size() > 3) request.blocks = r[3].get<std::vector<std::uint64_t>>();
    requests.push_back(std::move(request));
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  return requests;
}

void check_times(const json& expected, const std::vector<double>& ours) {
  REQUIRE(expected.size() == ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    REQUIRE(expected[i].is_null() == std::isnan(ours[i]));
    // The file has 12 digits.
    if (!expected[i].is_null()) CHECK(ours[i] == near(expected[i].get<double>()).epsilon(1e-10));
  }
}

}  // namespace

TEST_CASE("serving oracle: workloads of each policy run step by step as in the second simulator") {
  std::ifstream file(std::string(KVCAST_SOURCE_DIR) +
                     "/tests/simulate/oracle/serving_workloads.json");
  std::map<std::string, int> workloads;
  for (const json& w : json::parse(file)) {
    const std::string name = w.at("name");
    CAPTURE(name);
    ServingScenario scenario = parse_serving_scenario(w.at("settings"), name);
    scenario.settings.request_block_tokens = scenario.settings.block_size;
    ServingSetup setup;
    setup.servers = {scenario.settings, scenario.cost, 1};
    const Served served = serve_all(setup, requests_of(w.at("requests")));
    const json& expected = w.at("expected");
    check_times(expected.at("first"), served.first);
    check_times(expected.at("finish"), served.finish);
    const ServingTimes& t = served.times;
    CHECK(t.steps == expected.at("steps"));
    CHECK(t.counts.preemptions == expected.at("preemptions"));
    CHECK(t.counts.prefill_tokens == expected.at("prefill_tokens"));
    CHECK(t.counts.decode_tokens == expected.at("decode_tokens"));
    CHECK(t.counts.hit_tokens == expected.at("hit_tokens"));
    CHECK(t.peak_kv_blocks == expected.at("peak_blocks"));
    CHECK(t.rejected == expected.at("rejected"));
    ++workloads[w.at("settings").at("policy")];
  }
  CHECK(workloads.size() == policy_names().size());
  for (const auto& [policy, number] : workloads) CHECK(number >= 50);
}
