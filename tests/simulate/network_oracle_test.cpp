// The simulator against an independent one in Python, oracle/network_oracle.py.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "simulate/scenario.h"
#include "tests/near.h"

namespace kvcast::simulate {

TEST_CASE("simulate: every rank finishes when the Python simulator says") {
  const nlohmann::json rows =
      read_json_file(KVCAST_SOURCE_DIR "/tests/simulate/oracle/scenarios.json");
  REQUIRE(rows.size() >= 30);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    CAPTURE(n);
    const Scenario s = parse_scenario(rows[n]["scenario"], "scenarios.json");
    const Simulation simulation(s.platform, prefill_programs(s.work));
    const RunResult r = simulation.run(s.options);
    const auto expected = rows[n]["finish_s"].get<std::vector<double>>();
    REQUIRE(r.finish_s.size() == expected.size());
    CHECK(r.messages == rows[n]["messages"]);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(r.finish_s[i] == near(expected[i]).epsilon(1e-9));
      // All of a rank's time is computing or waiting.
      CHECK(r.ranks[i].compute_s + r.ranks[i].waiting_s == near(r.finish_s[i]).epsilon(1e-12));
    }
  }
}

}  // namespace kvcast::simulate
