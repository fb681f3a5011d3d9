#include <fstream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

using kvcast::TestFolder;
using nlohmann::json;

const std::string scenario = R"({"schedule": "kvr", "topology": "switch", "devices": 2,
    "layers": 4, "link_bytes_per_s": 1e9, "link_latency_s": 5e-5, "bytes_per_token_layer": 16384,
    "partition_tokens": [512, 512], "compute_before_exchange_s": [0.000343597, 0.000343597],
    "compute_after_exchange_s": [0.001380116, 0.001408749], "send_order": "async"})";

std::string write_scenario(const TestFolder& folder, const std::string& text = scenario) {
  const std::string path = (folder / "scenario.json").string();
  std::ofstream(path) << text;
  return path;
}

const std::string product =
    "simulate prefill --quiet --model llama-7b --hardware a100-80gb --prompt-len 1000 "
    "--attention eager ";
const std::string four = product + "--schedule kvr --devices 4 ";
const std::string link = "--link-gb-per-s 10 --link-latency-s 1e-5 ";

TEST_CASE("simulate prefill: a scenario answers with every key") {
  const TestFolder folder;
  const json j = run_json("simulate prefill --json --scenario " + write_scenario(folder));
  check_keys(j, {"ttft_s", "makespan_s", "finish_s", "messages", "events"});
  CHECK(j["ttft_s"].get<double>() == near(36.613186e-3).epsilon(1e-7));
  CHECK(j["finish_s"].size() == 2);
  CHECK(j["messages"] == 4);
  CHECK(j["ill_conditioned"] == false);
}

TEST_CASE("simulate prefill: --send-order overrides the scenario's") {
  const TestFolder folder;
  const json j =
      run_json("simulate prefill --json --send-order fifo --scenario " + write_scenario(folder));
  CHECK(j["ttft_s"].get<double>() == near(35.706778e-3).epsilon(1e-9));
}

TEST_CASE("simulate prefill: a model answers with every key, and its bounds hold") {
  const json j = run_json(four + link + "--json");
  check_keys(j, {"ttft_s", "makespan_s", "finish_s", "partition_tokens", "message_bytes",
                 "messages", "events"});
  CHECK(j["partition_tokens"] == json({250, 250, 250, 250}));
  // Even runahead moves (p - 1) C / 2 tokens' caches of 2 * 32 layers * 4096 fp16 numbers.
  CHECK(j["message_bytes"] == std::uint64_t{3} * 500 * 2 * 32 * 4096 * 2);
  CHECK(j["send_order"] == "fifo");
  CHECK(j["ttft_s"] > j["ttft_no_communication_s"]);
  CHECK(j["ttft_s"] > j["ttft_star_s"]);
  const json one = run_json(product + "--schedule tsp --devices 1 --json " + link);
  CHECK(one["ttft_s"].get<double>() == near(j["ttft_one_device_s"].get<double>()).epsilon(1e-12));
}

TEST_CASE("simulate prefill: a built-in topology and its platform file answer the same") {
  const TestFolder folder;
  const std::string path = (folder / "ring.json").string();
  std::ofstream(path) << R"({"topology": "ring", "devices": 4, "bandwidth": "10 GB/s",
                             "latency": "10 us"})";
  const json flags = run_json(product + "--schedule tsp --devices 4 --topology ring " + link +
                              "--partition 400,300,200,100 --json");
  const json file = run_json(product +
                             "--schedule tsp --partition 400,300,200,100 --json "
                             "--platform " +
                             path);
  CHECK(flags["finish_s"] == file["finish_s"]);
  CHECK(flags["finish_s"][0] != flags["finish_s"][3]);
}

TEST_CASE("simulate prefill: a platform of the catalog is taken by its name") {
  const std::string kvr = product + "--schedule kvr --json ";
  const json named = run_json(kvr + "--platform ring-4");
  const json flags =
      run_json(kvr + "--devices 4 --topology ring --link-gb-per-s 150 --link-latency-s 10.8e-6");
  CHECK(named["finish_s"] == flags["finish_s"]);
  check_refused(kvr + "--platform rnig-4", "did you mean 'ring-4'?");
}

TEST_CASE("simulate prefill: noise repeats with its seed") {
  const std::string noise = "--noise flows=30,bytes=5e7,jitter=0.2,seed=3,trials=16 --json";
  const json first = run_json(four + link + noise)["noise"];
  CHECK(first == run_json(four + link + noise)["noise"]);
  check_keys(first, {"ttft_mean_s", "ttft_deviation_s", "ttft_p50_s"});
  CHECK(first["ttft_p05_s"] < first["ttft_p95_s"]);
}

TEST_CASE("simulate prefill: trace and plot are written") {
  const TestFolder folder;
  const ProgramResult result = run_program(four + link + "--trace " + (folder / "t.json").string() +
                                           " --plot " + (folder / "g.svg").string());
  CHECK(result.status == 0);
  CHECK(folder.num_files() == 4);  // and the plot's CSV and script
  CHECK(result.output.find("device3 -> switch") == std::string::npos);  // the last sends nothing
  CHECK(result.output.find("device0 -> switch") != std::string::npos);
}

TEST_CASE("simulate prefill: says when digits mean nothing") {
  const ProgramResult result = run_program("simulate prefill --json --scenario '" KVCAST_SOURCE_DIR
                                           "/tests/simulate/chaotic.json'");
  CHECK(result.status == 0);
  CHECK(result.errors.find("warning: ill-conditioned") == 0);
  CHECK(json::parse(result.output)["ill_conditioned"] == true);
}

TEST_CASE("simulate prefill: a searched partition is that of partition search, and plays as said") {
  // A switch is two links away: 2 x 10 us.
  const json played = run_json(four + link + "--partition search --json");
  check_keys(played, {"partition_tokens", "lower_bound_s", "evaluations"});
  const json found = run_json(
      "partition search --model llama-7b --hardware a100-80gb --prompt-len 1000 --attention eager "
      "--devices 4 --link-gb-per-s 10 --link-latency-s 2e-5 --json");
  CHECK(played["partition_tokens"] == found["partition_tokens"]);
  CHECK(played["lower_bound_s"] == found["lower_bound_s"]);
  CHECK(played["ttft_s"].get<double>() == near(found["ttft_s"].get<double>()).epsilon(1e-9));
  CHECK(played["ttft_s"] < run_json(four + link + "--json")["ttft_s"]);
}

TEST_CASE("simulate prefill: the simulator as objective knows of links that routes share") {
  // Behind one PCIe switch for each two devices, the way from the second to the third is shared
  // with nobody; but its four hops take longer, which one chain link cannot say.
  const std::string pcie = four + link + "--topology pcie:group=2 --json --partition search ";
  const json by_recurrence = run_json(pcie);
  const json by_simulator = run_json(pcie + "--search-objective simulator");
  CHECK(by_recurrence["lower_bound_s"].is_null());
  CHECK(by_simulator["lower_bound_s"].is_null());
  CHECK(by_simulator["evaluations"] > 1);
  CHECK(by_simulator["ttft_s"] <= by_recurrence["ttft_s"]);
  const json gathered = run_json(product + link +
                                 "--schedule tsp --devices 3 --partition search "
                                 "--search-objective simulator --json");
  CHECK(gathered["ttft_s"] <=
        run_json(product + link + "--schedule tsp --devices 3 --json")["ttft_s"]);
}

TEST_CASE("simulate prefill: under noise the simulator as objective takes the mean") {
  const std::string noisy = four + link +
                            "--partition search --search-objective simulator --json "
                            "--noise flows=30,bytes=1e8,trials=5";
  const json j = run_json(noisy);
  // What was found is the best of those tried for the mean, and no better than the quiet network's.
  const std::string parts = j["partition_tokens"].dump();
  const json quiet = run_json(four + link + "--partition search --json");
  const json again = run_json(four + link + "--json --noise flows=30,bytes=1e8,trials=5 " +
                              "--partition " + parts.substr(1, parts.size() - 2));
  CHECK(again["noise"]["ttft_mean_s"] == j["noise"]["ttft_mean_s"]);
  const std::string of_quiet = quiet["partition_tokens"].dump();
  const json beside = run_json(four + link + "--json --noise flows=30,bytes=1e8,trials=5 " +
                               "--partition " + of_quiet.substr(1, of_quiet.size() - 2));
  CHECK(j["noise"]["ttft_mean_s"] <= beside["noise"]["ttft_mean_s"]);
  CHECK(j["partition_tokens"] != quiet["partition_tokens"]);
}

TEST_CASE("simulate prefill: operators are played one by one, keys and values each a message") {
  const json layers = run_json(four + link + "--json");
  const json operators = run_json(four + link + "--json --operators");
  CHECK(operators["messages"] == 2 * layers["messages"].get<int>());
  CHECK(operators["message_bytes"] == layers["message_bytes"]);
  CHECK(operators["ttft_s"].get<double>() == near(layers["ttft_s"].get<double>()).epsilon(0.05));
  const TestFolder folder;
  const std::string trace = (folder / "trace.json").string();
  run_json(four + link + "--json --operators --trace " + trace);
  std::ifstream file(trace);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text.find("mlp_norm") != std::string::npos);
  check_refused(product + "--schedule tsp --devices 4 --operators --all-gather direct " + link,
                "--all-gather");
  check_refused("simulate prefill --operators --scenario " + write_scenario(folder), "--operators");
}

TEST_CASE("simulate prefill: a partition from a table is that of partition lookup") {
  const TestFolder folder;
  const std::string file = (folder / "table.json").string();
  run_json(
      "partition table -q --json --model llama-7b --hardware a100-80gb --devices 4 "
      "--prompt-len 500,1500 --output " +
      file);
  const std::string table = link + "--partition table:" + file + " ";
  const json played = run_json(four + table + "--json");
  const json found =
      run_json("partition lookup --devices 4 --prompt-len 1000 --json --table " + file);
  CHECK(played["partition_tokens"] == found["partition_tokens"]);
  CHECK(!played.contains("lower_bound_s"));
  const std::string of = " --schedule kvr --devices 4 --prompt-len 1000 " + table;
  check_refused("simulate prefill --model falcon-7b --hardware a100-80gb" + of,
                "a table for model llama-7b, expected one for falcon-7b");
  check_refused("simulate prefill --model llama-7b --hardware h200" + of,
                "a table for hardware a100-80gb, expected one for h200, or --force");
  const json forced =
      run_json("simulate prefill --json --force --model llama-7b --hardware h200" + of);
  CHECK(forced["partition_tokens"] == found["partition_tokens"]);
  check_refused(four + link + "--force", "--force");
  check_refused(product + "--schedule kvr --devices 3 " + table, "3 processes, expected one of 4");
  const std::string longer =
      "simulate prefill --model llama-7b --hardware a100-80gb --schedule kvr --devices 4 "
      "--prompt-len 2000 " +
      table;
  check_refused(longer, "500 to 1500 tokens, or --extrapolate");
  CHECK(run_json(longer + "--extrapolate --json")["partition_tokens"].size() == 4);
}

TEST_CASE("simulate prefill: runs of very many messages are not repeated, and that is said") {
  // 32 layers, 256 devices that each send 255 times: 2,088,960.
  const ProgramResult result = run_program(
      "simulate prefill --json --model llama-7b --hardware a100-80gb --schedule tsp "
      "--devices 256 --topology ring --link nvlink --prompt-len 1k");
  CHECK(result.status == 0);
  CHECK(result.errors.find("2088960 messages: too many") == 0);
  CHECK(json::parse(result.output)["ill_conditioned"].is_null());
}

TEST_CASE("simulate prefill: wrong requests are refused in one line") {
  check_refused("simulate prefill", "--model is required, or --scenario FILE");
  check_refused("simulate prefil", "did you mean 'prefill'?");
  check_refused(product + "--devices 4 " + link, "--schedule is required");
  check_refused(product + "--schedule kvr " + link, "--devices is required, or --platform FILE");
  check_refused(product + "--schedule kvx --devices 4 " + link, "did you mean 'kvr'?");
  check_refused(four, "--link-gb-per-s and --link-latency-s are both required");
  check_refused(four + "--link-gb-per-s 0 --link-latency-s 1", "--link-gb-per-s: got '0'");
  check_refused(four + "--link-gb-per-s -1 --link-latency-s 1", "--link-gb-per-s: got '-1'");
  check_refused(four + link + "--partition 400,300,200,99", "1000");
  check_refused(four + link + "--partition 500,500,0,0", "--partition");
  const TestFolder apart;
  std::ofstream(apart / "apart.json") << R"({"name": "apart", "devices": ["a", "b"], "links": []})";
  check_refused(product + "--schedule kvr --platform " + (apart / "apart.json").string(),
                "apart.json");
  check_refused(four + "--link-gb-per-s 1 --link-latency-s -1", "--link-latency-s: got '-1'");
  check_refused(four + "--link nvlnk", "did you mean 'nvlink");
  check_refused(four + link + "--topology rig", "--topology: unknown topology 'rig'");
  check_refused(four + link + "--partition 1,2,3",
                "--partition: got 3 parts, expected one for each of the 4 devices");
  check_refused(four + link + "--partition 1000,x,0,0", "--partition");
  check_refused(four + link + "--partition serch", "--partition");
  check_refused(four + link + "--partition table:/nowhere/t.json", "/nowhere/t.json");
  check_refused(four + link + "--partition search --search-objective simulater",
                "--search-objective: got 'simulater', expected recurrence or simulator");
  check_refused(four + link + "--search-objective simulator", "expected --partition search");
  check_refused(four + link + "--extrapolate", "expected --partition table:FILE");
  check_refused(product + link + "--schedule tsp --devices 4 --partition search",
                "got schedule tsp, which the recurrence does not describe");
  check_refused(four + link + "--send-order fif", "did you mean 'fifo'?");
  check_refused(four + link + "--noise flows=1", "--noise: noise: got 1 flows of 0 bytes");
  check_refused(four + link + "--platform x.json",
                "--link-gb-per-s and --platform both say what the links are");
  check_refused(four + "--platform /nowhere/x.json", "/nowhere/x.json");
  check_refused(four + link + "--plot g.pdf", ".svg or .png");
  check_refused(four + link + "--trace /nowhere/t.json", "/nowhere");
  check_refused(product + "--schedule kvr --devices 2000 " + link,
                "--devices: got 2000, expected 1 to 1024");
  check_refused("simulate prefill --scenario /nowhere.json", "/nowhere.json");
  check_refused(four + "--scenario x.json", "--scenario says all that is simulated");
  check_refused(four + "--link nvlink --link-gb-per-s 5", "--link and --link-gb-per-s");
  check_refused(four + link + "--all-gather ring", "--all-gather: got schedule kvr");
  check_refused(four + "--link-gb-per-s 1e300 --link-latency-s 0", "--link-gb-per-s: got '1e300'");
  check_refused(four + "--link-gb-per-s 1e-10 --link-latency-s 0", "--link-gb-per-s: got '1e-10'");
  const TestFolder folder;
  const std::string scenario_file = "simulate prefill --scenario " + write_scenario(folder);
  for (const std::string flag : {"--link-gb-per-s 5", "--partition 1,2", "--prompt-len 7",
                                 "--attention tiled", "--dtype fp16", "--link nvlink"}) {
    check_refused(scenario_file + " " + flag,
                  "expected it without " + flag.substr(0, flag.find(' ')));
  }
  check_refused("simulate prefill --scenario " + write_scenario(folder, R"({"schedle": "kvr"})"),
                "/schedule: missing");
}

}  // namespace
}  // namespace kvcast::cli
