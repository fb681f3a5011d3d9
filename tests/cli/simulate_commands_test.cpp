#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string scenario = R"({"schedule": "kvr", "topology": "switch", "devices": 2,
    "layers": 4, "link_bytes_per_s": 1e9, "link_latency_s": 5e-5, "bytes_per_token_layer": 16384,
    "partition_tokens": [512, 512], "compute_before_exchange_s": [0.000343597, 0.000343597],
    "compute_after_exchange_s": [0.001380116, 0.001408749], "send_order": "async"})";

const std::string product =
    "simulate prefill --quiet --model llama-7b --hardware a100-80gb --prompt-len 1000 "
    "--attention eager ";
const std::string four = product + "--schedule kvr --devices 4 ";
const std::string link = "--link-gb-per-s 10 --link-latency-s 1e-5 ";

TEST_CASE("micro-batches: an answer names those that a batch is cut into") {
  for (const std::string command : {"estimate", "simulate prefill"}) {
    const json j = run_json(command +
                            " --model llama-3.1-8b --hardware h100-sxm --pp 2 --platform hgx-h100 "
                            "--batch 2 --micro-batches 9 --json");
    CHECK(j["micro_batches"] == 2);
  }
}

TEST_CASE("simulate prefill: a scenario answers with every key; --send-order overrides its own") {
  const TestFolder folder;
  write(folder / "scenario.json", scenario);
  const std::string simulate = "simulate prefill --json --scenario " + folder.file("scenario.json");
  const json j = run_json(simulate);
  check_keys(j, {"ttft_s", "makespan_s", "finish_s", "messages", "events"});
  CHECK(j["ttft_s"].get<double>() == near(36.613186e-3).epsilon(1e-7));
  CHECK(j["finish_s"].size() == 2);
  CHECK(j["messages"] == 4);
  CHECK(j["ill_conditioned"] == false);
  CHECK(run_json(simulate + " --send-order fifo")["ttft_s"].get<double>() ==
        near(35.706778e-3).epsilon(1e-9));
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
  // Three sequences send three times as much, and compute nearly three times as long.
  const json three = run_json(four + link + "--batch 3 --json");
  CHECK(three["message_bytes"] == 3 * j["message_bytes"].get<std::uint64_t>());
  CHECK(three["ttft_s"] > 2 * j["ttft_s"].get<double>());
  const json one = run_json(product + "--schedule tsp --devices 1 --json " + link);
  CHECK(one["ttft_s"].get<double>() == near(j["ttft_one_device_s"].get<double>()).epsilon(1e-12));
}

TEST_CASE("simulate prefill: a built-in topology, its file and its catalog name answer the same") {
  const TestFolder folder;
  write(folder / "ring.json",
        R"({"topology": "ring", "devices": 4, "bandwidth": "150 GB/s", "latency": "10.8 us"})");
  const std::string tsp = product + "--schedule tsp --partition 400,300,200,100 --json ";
  const json flags =
      run_json(tsp + "--devices 4 --topology ring --link-gb-per-s 150 --link-latency-s 10.8e-6");
  CHECK(flags["finish_s"][0] != flags["finish_s"][3]);
  for (const std::string& platform : {folder.file("ring.json"), std::string("ring-4")}) {
    CHECK(run_json(tsp + "--platform " + platform)["finish_s"] == flags["finish_s"]);
  }
}

TEST_CASE("simulate prefill: without a link the hardware's is taken") {
  CHECK(run_json(four + "--json") == run_json(four + "--link nvlink --json"));
  // Its latency is a message's, through a switch too.
  const std::string small = "--model llama-7b --hardware a100-80gb --prompt-len 64 --json --quiet ";
  const double closed = run_json("estimate " + small + "--method tsp:p=4")["ttft_s"];
  for (const char* topology : {"switch", "crossbar", "pcie", "fat-tree"}) {
    const json j =
        run_json("simulate prefill " + small + "--schedule tsp --devices 4 --topology " + topology);
    CHECK(j["ttft_s"].get<double>() == near(closed).epsilon(1e-9));
  }
}

TEST_CASE("simulate prefill: noise repeats with its seed") {
  const std::string noise = "--noise flows=30,bytes=5e7,jitter=0.2,seed=3,trials=16 --json";
  const json first = run_json(four + link + noise)["noise"];
  CHECK(first == run_json(four + link + noise)["noise"]);
  check_keys(first, {"ttft_mean_s", "ttft_deviation_s", "ttft_p50_s"});
  CHECK(first["ttft_p05_s"] < first["ttft_p95_s"]);
}

TEST_CASE("simulate prefill: noise slows a plan that leaves devices of its platform out") {
  const json j = run_json(
      "simulate prefill --model llama-3.1-8b --hardware h100-sxm --prompt-len 4k --tp 4 --noise "
      "flows=4,bytes=1e7,trials=5 --json");
  CHECK(j["noise"]["ttft_mean_s"] >= j["ttft_s"]);
}

TEST_CASE("simulate prefill: a spread model's steps, methods and stragglers") {
  const std::string on_h100 =
      "simulate prefill --json --model llama-3.1-8b --hardware h100-sxm --prompt-len 1k ";
  const json steps = run_json(on_h100 + "--pp 2 --stages 20/12 --batch 4 --output-len 5");
  const json estimate = run_json(
      "estimate --json --model llama-3.1-8b --hardware h100-sxm --prompt-len 1k --pp 2 --stages "
      "20/12 --batch 4 --output-len 5");
  CHECK(steps["closed_form_s"] == estimate["ttft_s"]);
  CHECK(steps["closed_form_tpot_s"] == estimate["tpot_s"]);
  CHECK(steps["tpot_s"] == near(estimate["tpot_s"].get<double>()).epsilon(0.05));
  CHECK(steps["makespan_s"] > steps["ttft_s"]);
  CHECK_FALSE(run_json(on_h100 + "--pp 2").contains("tpot_s"));
  const json ranks = run_json(on_h100 + "--tp 2 --method kvr:p=4");
  CHECK(ranks["devices"] == 8);
  CHECK(ranks["partition_tokens"] == json{256, 256, 256, 256});
  CHECK(run_json(on_h100 + "--tp 2 --method kvr:p=1")["ttft_s"] ==
        run_json(on_h100 + "--tp 2")["ttft_s"]);
  for (const char* method : {"kvr:p=4", "tsp:p=4", "kvr:p=16"}) {  // the links of estimate
    const json chain = run_json(on_h100 + "--method " + method);
    CHECK(chain["platform"] == "h100-sxm by nvlink");
    CHECK(chain["closed_form_s"] ==
          run_json("estimate --json --model llama-3.1-8b --hardware h100-sxm --prompt-len 1k "
                   "--method " +
                   std::string(method))["ttft_s"]);
    CHECK(chain["ttft_s"] == near(chain["closed_form_s"].get<double>()).epsilon(0.01));
  }
  const json norms = run_json(on_h100 + "--tp 2 --sequence-parallel");
  CHECK(norms["closed_form_s"] ==
        run_json("estimate --json --model llama-3.1-8b --hardware "
                 "h100-sxm --prompt-len 1k --tp 2 --sequence-parallel")["ttft_s"]);
  CHECK(norms["ttft_s"] != run_json(on_h100 + "--tp 2")["ttft_s"]);
  const json narrow = run_json(on_h100 + "--tp 2 --weight-dtype fp8 --elementwise eager");
  CHECK(narrow["closed_form_s"] ==
        run_json("estimate --json --model llama-3.1-8b --hardware h100-sxm --prompt-len 1k --tp 2 "
                 "--weight-dtype fp8 --elementwise eager")["ttft_s"]);
  CHECK(narrow["ttft_s"] == near(narrow["closed_form_s"].get<double>()).epsilon(0.01));
  const json slow = run_json(on_h100 + "--tp 2 --noise stragglers=2,slowdown=2,trials=3");
  CHECK(slow["noise"]["ttft_deviation_s"] < 1e-9);  // both, in each trial
  CHECK(slow["noise"]["ttft_mean_s"] > 1.5 * slow["ttft_s"].get<double>());
}

TEST_CASE("simulate prefill: trace and plot are written") {
  const TestFolder folder;
  const ProgramResult result = run_well(four + link + "--trace " + folder.file("t.json") +
                                        " --plot " + folder.file("g.svg"));
  CHECK(folder.num_files() == 4);                             // and the plot's CSV and script
  CHECK_FALSE(contains(result.output, "device3 -> switch"));  // the last sends nothing
  CHECK(contains(result.output, "device0 -> switch"));
}

TEST_CASE("simulate prefill: says when digits mean nothing") {
  const ProgramResult result = run_well("simulate prefill --json --scenario '" KVCAST_SOURCE_DIR
                                        "/tests/simulate/chaotic.json'");
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
  check_equal(played, found, {"partition_tokens", "lower_bound_s"});
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
  const std::string gather = product + link + "--schedule tsp --devices 3 --json ";
  CHECK(run_json(gather + "--partition search --search-objective simulator")["ttft_s"] <=
        run_json(gather)["ttft_s"]);
}

TEST_CASE("simulate prefill: under noise the simulator as objective takes the mean") {
  const std::string noisy = four + link + "--json --noise flows=30,bytes=1e8,trials=5 --partition ";
  const auto mean = [&](const json& parts) {
    return run_json(noisy + fmt::format("{}", fmt::join(parts.get<std::vector<int>>(),
                                                        ",")))["noise"]["ttft_mean_s"];
  };
  const json j = run_json(noisy + "search --search-objective simulator");
  // What was found is the best of those tried for the mean, and no better than the quiet network's.
  const json quiet = run_json(four + link + "--partition search --json");
  CHECK(mean(j["partition_tokens"]) == j["noise"]["ttft_mean_s"]);
  CHECK(j["noise"]["ttft_mean_s"] <= mean(quiet["partition_tokens"]));
  CHECK(j["partition_tokens"] != quiet["partition_tokens"]);
}

TEST_CASE("simulate prefill: operators are played one by one, keys and values each a message") {
  const json layers = run_json(four + link + "--json");
  const json operators = run_json(four + link + "--json --operators");
  CHECK(operators["messages"] == 2 * layers["messages"].get<int>());
  CHECK(operators["message_bytes"] == layers["message_bytes"]);
  CHECK(operators["ttft_s"].get<double>() == near(layers["ttft_s"].get<double>()).epsilon(0.05));
  const TestFolder folder;
  run_json(four + link + "--json --operators --trace " + folder.file("trace.json"));
  CHECK(contains(contents(folder / "trace.json"), "mlp_norm"));
}

TEST_CASE("simulate prefill: a partition from a table is that of partition lookup") {
  const TestFolder folder;
  const std::string file = folder.file("table.json");
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
  check_refused(product + "--schedule kvr --devices 3 " + table, "3 ranks, expected one of 4");
  const std::string longer =
      "simulate prefill --model llama-7b --hardware a100-80gb --schedule kvr --devices 4 "
      "--prompt-len 2000 " +
      table;
  check_refused(longer, "500 to 1500 tokens, or --extrapolate");
  CHECK(run_json(longer + "--extrapolate --json")["partition_tokens"].size() == 4);
}

TEST_CASE("simulate prefill: runs of very many messages are not repeated, and that is said") {
  // 32 layers, 256 devices that each send 255 times: 2,088,960.
  const ProgramResult result = run_well(
      "simulate prefill --json --model llama-7b --hardware a100-80gb --schedule tsp "
      "--devices 256 --topology ring --link nvlink --prompt-len 1k");
  CHECK(result.errors.find("2088960 messages: too many") == 0);
  CHECK(json::parse(result.output)["ill_conditioned"].is_null());
}

}  // namespace
}  // namespace kvcast::cli
