#include "search/server_group.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "search/placed_estimator.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"
#include "tests/simulate/serving_requests.h"

using namespace kvcast;
using search::PlacedEstimator;

namespace {

simulate::ServingSetup setup_of(const roofline::Configuration& c, const std::string& scheduler) {
  simulate::ServingSetup setup;
  setup.servers = search::make_server(c, scheduler, "a test").servers;
  return setup;
}

}  // namespace

TEST_CASE("server group: one request alone takes what it is estimated to") {
  for (const char* method : {"kvr:p=4", "tsp:p=4", "kvr:p=3,partition=search", "slim+kvr:p=2",
                             "streaming:sinks=4,window=512+kvr:p=1",
                             "specprefill:speculator=llama-3.2-1b,keep=0.3+kvr:p=4"}) {
    CAPTURE(method);
    const std::string name = method;
    const roofline::Configuration c =
        a100_configuration(name.starts_with("slim") ? "llama-7b" : "llama-3.1-8b", method);
    const roofline::Estimate e = PlacedEstimator(c).at({1, 2000, 6});
    for (const char* scheduler : {"vllm-v1", "vllm-v0", "trtllm-guaranteed"}) {
      const simulate::Served served =
          serve_all(setup_of(c, scheduler), simulate::requests_of({{0, 2000, 6}}));
      CHECK(served.first[0] == near(e.ttft_s).epsilon(1e-12));
      CHECK(served.finish[0] - served.first[0] == near(5 * e.tpot_s).epsilon(1e-9));
    }
  }
}

TEST_CASE("server group: a server's devices, and what lies on the one that decodes") {
  const roofline::Configuration plain = a100_configuration("llama-3.1-8b", "plain");
  roofline::Configuration c = a100_configuration("llama-3.1-8b", "kvr:p=4");
  const simulate::ModelServer one =
      search::make_server(plain, "vllm-v0:max_model_len=8192", "a test");
  const simulate::ModelServer four = search::make_server(c, "vllm-v0:max_model_len=8192", "a test");
  CHECK(one.devices == 1);
  CHECK(four.devices == 4);
  CHECK(four.memory.weight_bytes == one.memory.weight_bytes);
  CHECK(four.memory.block_bytes == one.memory.block_bytes);
  // A device of four has activations of fewer tokens, and so more blocks.
  CHECK(four.memory.activation_bytes < one.memory.activation_bytes);
  CHECK(four.servers.settings.num_blocks > one.servers.settings.num_blocks);
}

TEST_CASE("server group: takes one prompt after another, and sends caches to those that decode") {
  const roofline::Configuration c = a100_configuration("llama-3.1-8b", "kvr:p=4");
  const double prompt_s = PlacedEstimator(c).at({1, 3000, 1}).ttft_s;
  simulate::ServingSetup setup = setup_of(c, "vllm-v1");
  simulate::Served served =
      serve_all(setup, simulate::requests_of({{0, 3000, 1}, {0, 3000, 1}, {0, 3000, 1}}));
  CHECK(served.times.duration_s == near(3 * prompt_s).epsilon(1e-12));

  const roofline::Configuration plain = a100_configuration("llama-3.1-8b", "plain");
  setup.decoders = search::make_server(plain, "vllm-v1", "a test").servers;
  setup.link = {0.01, 2e-6};
  served = serve_all(setup, simulate::requests_of({{0, 3000, 6}}));
  CHECK(served.first[0] == near(prompt_s).epsilon(1e-12));
  const double tpot_s = roofline::Estimator(plain).at({1, 3000, 6}).tpot_s;
  CHECK(served.finish[0] == near(prompt_s + 0.01 + 3000 * 2e-6 + 5 * tpot_s).epsilon(1e-9));
}

TEST_CASE("server group: prompts that it cannot share are rejected, the others are not") {
  const roofline::Configuration c = a100_configuration("llama-3.1-8b", "kvr:p=4");
  std::vector<std::string> reasons;
  simulate::ServingWatch watch;
  watch.on_rejected = [&](const simulate::ServingRequest& r, const std::string& reason) {
    CHECK((r.id == 1 || r.id == 3));
    reasons.push_back(reason);
  };
  const simulate::Served served =
      serve_all(setup_of(c, "vllm-v1"),
                simulate::requests_of({{0, 4, 2}, {0, 3, 2}, {0, 5, 2}, {0, 3, 2}}), watch);
  CHECK(served.times.finished == 2);
  REQUIRE(reasons.size() == 2);
  for (const std::string& reason : reasons) check_line(reason, {"at least one token per rank (4)"});
}

TEST_CASE("server group: what no server can be of is refused") {
  const auto message = [](const char* method, const char* scheduler) {
    return message_of([&] {
      search::make_server(a100_configuration("llama-3.1-8b", method), scheduler, "a test");
    });
  };
  check_line(message("kvr:p=2,partition=600/400", ""), {"kvr:p=2,partition=600/400", "search"});
  check_line(message("kvr:p=4", "sarathi"), {"sarathi", "one piece"});
}
