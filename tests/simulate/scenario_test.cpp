#include "simulate/scenario.h"

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/model/message_of.h"

namespace kvcast::simulate {
namespace {

using nlohmann::json;

const json example = json::parse(R"(
    {"schedule": "kvr", "topology": "switch", "devices": 2, "layers": 4, "link_bytes_per_s": 1e9,
     "link_latency_s": 5e-5, "bytes_per_token_layer": 16384, "partition_tokens": [512, 512],
     "compute_before_exchange_s": [0.000343597, 0.000343597],
     "compute_after_exchange_s": [0.001380116, 0.001408749], "send_order": "async",
     "background_flows": [{"start_s": 0.0, "source": 0, "destination": 1, "bytes": 1000000}]})");

TEST_CASE("simulate: a scenario is read as it is written") {
  const Scenario s = parse_scenario(example, "s.json");
  CHECK(s.work.schedule == Schedule::Kvr);
  CHECK(s.options.send_order == SendOrder::Async);
  CHECK(s.work.partition_tokens == std::vector<std::uint64_t>{512, 512});
  CHECK(s.work.ranks[0].kinds[0].after_exchange_s == 0.001380116);
  CHECK(s.work.ranks[1].kinds[0].after_exchange_s == 0.001408749);
  CHECK(s.work.bytes_per_token == std::vector<std::uint64_t>{16384});
  CHECK(s.work.layers.size() == 4);
  CHECK(s.platform.links()[0].bytes_per_s == 1e9);
  CHECK(s.platform.links()[0].latency_s == 5e-5);
  REQUIRE(s.options.background.size() == 1);
  CHECK(s.options.background[0].bytes == 1000000);
}

TEST_CASE("simulate: a send order that is not given is fifo") {
  json j = example;
  j.erase("send_order");
  CHECK(parse_scenario(j, "s.json").options.send_order == SendOrder::Fifo);
}

TEST_CASE("simulate: wrong scenarios are refused with the place") {
  struct Case {
    std::function<void(json&)> change;
    std::string message;
  };
  const std::vector<Case> cases{
      {[](json& j) { j["shedule"] = "kvr"; },
       "s.json: unknown key 'shedule'; did you mean 'schedule'?"},
      {[](json& j) { j["schedule"] = "kvs"; },
       "s.json: /schedule: unknown schedule 'kvs'; did you mean 'kvr'?"},
      {[](json& j) { j.erase("topology"); }, "s.json: /topology: missing; this key is required"},
      {[](json& j) { j["topology"] = "swich"; },
       "s.json: /topology: unknown topology 'swich'; did you mean 'switch'?"},
      {[](json& j) { j["devices"] = 3; },
       "s.json: /partition_tokens: got 2 entries, expected one for each of the 3 devices"},
      {[](json& j) { j["devices"] = 1e6; }, "s.json: /devices: got 1000000.0, expected 1 to 1024"},
      {[](json& j) { j["devices"] = -2; },
       "s.json: /devices: got -2, expected a whole number from 1 to 2^40"},
      {[](json& j) { j["layers"] = 0; },
       "s.json: /layers: got 0, expected a whole number from 1 to 2^40"},
      {[](json& j) { j["layers"] = 20000; }, "s.json: /layers: got 20000, expected 1 to 10000"},
      {[](json& j) { j["link_bytes_per_s"] = 0; },
       "s.json: /link_bytes_per_s: got 0, expected a number above 0"},
      {[](json& j) { j["link_bytes_per_s"] = 5e-324; },
       "s.json: /link_bytes_per_s: got 5e-324, expected a finite number, 1e-30 to 1e30"},
      {[](json& j) { j["link_bytes_per_s"] = 0.5; },
       "s.json: /link_bytes_per_s: got 0.5, expected at least 1"},
      {[](json& j) {
         j["compute_before_exchange_s"] = {1e308, 1e308};
       },
       "s.json: /compute_before_exchange_s: got [1e+308,1e+308], expected at most 1e+09 s"},
      {[](json& j) { j["link_latency_s"] = 2e9; },
       "s.json: /link_latency_s: got 2000000000.0, expected at most 1e+09 s"},
      {[](json& j) { j["link_latency_s"] = -1e-9; },
       "s.json: /link_latency_s: got -1e-09, expected zero or a number of seconds above it"},
      {[](json& j) {
         j["partition_tokens"] = {512, 0};
       },
       "s.json: /partition_tokens: got 0, expected a list of whole numbers from 1 to 2^40"},
      {[](json& j) { j["compute_after_exchange_s"] = {0.1}; },
       "s.json: /compute_after_exchange_s: got 1 entries, expected one for each of the 2 devices"},
      {[](json& j) {
         j["compute_after_exchange_s"] = {0.1, -0.1};
       },
       "s.json: /compute_after_exchange_s: got [0.1,-0.1], expected a list of seconds, none below "
       "zero"},
      {[](json& j) { j["compute_before_exchange_s"] = "1"; },
       "s.json: /compute_before_exchange_s: got \"1\", expected a list of seconds, none below "
       "zero"},
      {[](json& j) { j["send_order"] = "lifo"; },
       "s.json: /send_order: unknown send order 'lifo'; did you mean 'fifo'?"},
      {[](json& j) { j["background_flows"][0]["source"] = 2; },
       "s.json: /background_flows/0/source: got 2, expected a device from 0 to 1"},
      {[](json& j) { j["background_flows"][0]["destination"] = 0; },
       "s.json: /background_flows/0/destination: got 0, expected another device than the source"},
      {[](json& j) { j["background_flows"][0]["start_s"] = -1; },
       "s.json: /background_flows/0/start_s: got -1, expected zero or a number of seconds above "
       "it"},
      {[](json& j) { j["background_flows"][0]["size"] = 1; },
       "s.json: /background_flows/0: unknown key 'size'; expected one of: bytes, destination, "
       "source, start_s"},
      {[](json& j) { j["background_flows"] = 1; },
       "s.json: /background_flows: got 1, expected a list of at most 1000000 flows"},
  };
  for (const Case& c : cases) {
    json j = example;
    c.change(j);
    CHECK(message_of([&] { parse_scenario(j, "s.json"); }) == c.message);
  }
}

TEST_CASE("simulate: a quiet run answers a change of its inputs with one of the same size") {
  const Scenario s = parse_scenario(example, "s.json");
  const Simulation simulation(s.platform, prefill_programs(s.work));
  const double sensitivity =
      ttft_sensitivity(simulation, s.options, simulation.run(s.options).ttft_s);
  CHECK(sensitivity > 1e-11);
  CHECK(sensitivity < 3e-9);
}

TEST_CASE("simulate: a chaotic run is seen to be one") {
  // TSP with asynchronous sends, even chunks and traffic of others.
  const Scenario s = read_scenario(KVCAST_SOURCE_DIR "/tests/simulate/chaotic.json");
  const Simulation simulation(s.platform, prefill_programs(s.work));
  CHECK(ttft_sensitivity(simulation, s.options, simulation.run(s.options).ttft_s) >
        ill_conditioned);
}

}  // namespace
}  // namespace kvcast::simulate
