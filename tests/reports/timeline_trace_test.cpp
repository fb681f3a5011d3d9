#include "reports/plot/timeline_trace.h"

#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "simulate/topologies.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

using nlohmann::json;
using simulate::Compute;
using simulate::Receive;
using simulate::Send;

TEST_CASE("reports: a trace has every computation, wait and message, in microseconds") {
  // A name that JSON must escape.
  const simulate::Platform platform({{"gpu \"0\""}, {"gpu1"}}, {{0, 1, 100, 0}, {1, 0, 100, 0}},
                                    "test");
  const simulate::Simulation simulation(
      platform, {{{Compute{1, 0}, Send{1, 200}}, {Receive{0}, Compute{0.5, 0}}}, {"work"}});
  simulate::RunOptions options;
  options.record = true;
  options.background = {{0, 1, 0, 50}};
  const TestFolder folder;
  write_trace(simulation, simulation.run(options), folder / "trace.json");
  const json trace = read_json_file(folder / "trace.json");
  std::map<int, std::string> processes;
  std::vector<json> slices;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") {
      processes[event["pid"].get<int>()] = event["args"]["name"].get<std::string>();
    }
    if (event["ph"] != "M") slices.push_back(event);
  }
  CHECK(processes ==
        std::map<int, std::string>{{0, "gpu \"0\""}, {1, "gpu1"}, {2, "background flows"}});
  const auto find = [&](const std::string& phase, const std::string& name, int process) {
    for (const json& s : slices) {
      if (s["ph"] == phase && s["name"] == name && s["pid"] == process) return s;
    }
    FAIL("no slice " << name);
    return json();
  };
  CHECK(find("X", "work", 0)["dur"] == 1e6);
  CHECK(find("X", "work", 1)["ts"] == 3e6);
  CHECK(find("X", "wait for gpu \"0\"", 1)["dur"] == 3e6);
  const json begin = find("b", "to gpu1", 0);
  CHECK(begin["ts"] == 1e6);
  CHECK(begin["args"]["bytes"] == 200);
  CHECK(begin["args"]["message"] == 0);
  CHECK(find("e", "to gpu1", 0)["ts"] == 3e6);
  CHECK(find("e", "to gpu1", 0)["id"] == begin["id"]);
  CHECK(find("e", "gpu1 to gpu \"0\"", 2)["ts"] == 0.5e6);
  CHECK(slices.size() == 3 + 2 * 2);
}

}  // namespace
}  // namespace kvcast::reports
