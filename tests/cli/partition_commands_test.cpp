// `partition search`, `partition table`, `partition lookup`, `choose devices`.
#include <numeric>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string a100 = " --model llama-7b --hardware a100-80gb ";

TEST_CASE("partition search: the best partition, its ends and its certificate") {
  const json j =
      run_json("partition search --json --devices 4 --prompt-len 10k --attention eager" + a100);
  check_keys(
      j, {"partition_tokens", "partition_boundaries", "ttft_s", "lower_bound_s", "evaluations"});
  const auto tokens = j["partition_tokens"].get<std::vector<std::uint64_t>>();
  CHECK(tokens.size() == 4);
  CHECK(std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0}) == 10240);
  CHECK(j["partition_boundaries"].front() == 0);
  CHECK(j["partition_boundaries"].back() == 10240);
  CHECK(j["partition_boundaries"][1] == tokens[0]);
  CHECK(j["lower_bound_s"] <= j["ttft_s"]);
  CHECK(j["ttft_s"].get<double>() <= 1.005 * j["lower_bound_s"].get<double>());
  CHECK(j["ttft_s"] < j["even_ttft_s"]);
}

TEST_CASE("partition search: a command of the user's times the partitions") {
  // The first part is best at 60 of 100 tokens.
  const std::string search = "partition search --json --devices 2 --prompt-len 100" + a100;
  const json j = run_json(
      search + "--objective-command 'echo {partition} | awk -F, \"{print 1+(\\$1-60)^2/1000}\"'");
  CHECK(j["partition_tokens"] == json({60, 40}));
  CHECK(j["ttft_s"] == 1);
  CHECK(j["lower_bound_s"].is_null());
  // As run is told, and as it answers: any even split takes 1 s, others 2.
  const json run = run_json(search +
                            "--objective-command 'echo \\{\\\"ttft_s\\\": $(echo {parts} | awk -F/ "
                            "\"{print 2-(\\$1==\\$2)}\")\\}'");
  CHECK(run["ttft_s"] == 1.0);
  // The command needs no model.
  run_json(
      "partition search --json --devices 2 --prompt-len 9 --objective-command "
      "'echo 1 # {partition}'");
}

TEST_CASE("partition table: kept, looked up between its contexts, refused for another model") {
  const TestFolder folder;
  const std::string file = folder.file("table.json");
  const std::string csv = folder.file("table.csv");
  const json table = run_json(
      "partition table -q --json --verify --devices 2,4 --prompt-len 4k..16k:4k --output " + file +
      " --csv " + csv + a100);
  CHECK(table["entries"].size() == 8);
  CHECK(table["verify"]["entries"] == 4);
  CHECK(table["verify"]["worst_loss"] < 0.013);  // what the paper loses at worst
  const std::string rows = contents(csv);
  CHECK(rows.starts_with("context_tokens,devices,partition_tokens,ttft_s"));
  CHECK(contains(rows.substr(0, rows.find('\n')), ",kvcast,model,hardware,attention,dtype"));

  const std::string lookup = "partition lookup --devices 4 --table " + file;
  const json j = run_json(lookup + " --json --verify --prompt-len 10k" + a100);
  check_keys(j, {"partition_tokens", "partition_boundaries", "ttft_s", "lower_bound_s",
                 "evaluations", "searched_ttft_s", "loss"});
  CHECK(j["partition_boundaries"].back() == 10240);
  CHECK(j["loss"].get<double>() >= -1e-9);
  CHECK(j["loss"] < 0.013);

  check_refused(lookup + " --prompt-len 10k --model falcon-7b", "a table for model llama-7b");
  check_refused(lookup + " --prompt-len 10k --hardware h200", "a table for hardware a100-80gb");
  check_refused(lookup + " --prompt-len 32k", "--extrapolate");
  check_refused("partition lookup --devices 3 --prompt-len 8k --table " + file, "one of 2, 4");
  run_json(lookup + " --json --prompt-len 32k --extrapolate");
  run_json(lookup + " --json --prompt-len 8k --model falcon-7b --force");

  json changed = json::parse(contents(file));
  changed["entries"][0]["ttft_s"] = 1.01 * changed["entries"][0]["ttft_s"].get<double>();
  write(file, changed.dump());
  check_refused(lookup + " --prompt-len 10k", "make the table again, or --force");
  run_json(lookup + " --json --prompt-len 10k --force");

  write(file, R"({"file": "kvcast partition table", "settings": {}, "entries": [
    {"context": 9, "partition_tokens": [5, 3], "ttft_s": 1, "even_ttft_s": 1, "lower_bound_s": 1,
     "evaluations": 1}]})");
  check_refused(lookup + " --prompt-len 9", "8 tokens in all");
  write(file, "{");
  check_refused(lookup + " --prompt-len 9", file);
}

TEST_CASE("partition search, simulate prefill: one node's host takes the same time in both") {
  const std::string node =
      " --model llama-7b --hardware a100-80gb-kvr-node --attention eager --send-order block "
      "--devices 4 --prompt-len 4k --json ";
  for (const std::string mode : {"calibrated", "speed-of-light"}) {
    CAPTURE(mode);
    const json found = run_json("partition search" + node + "--mode " + mode);
    const json simulated = run_json(
        "simulate prefill --schedule kvr --topology chain --link nvlink --partition " +
        fmt::format("{}", fmt::join(found["partition_tokens"].get<std::vector<int>>(), ",")) +
        node + "--mode " + mode);
    CHECK(simulated["ttft_s"].get<double>() == near(found["ttft_s"].get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("choose devices: more devices as long as they pay off") {
  const json fast = run_json("choose devices --json --prompt-len 16k" + a100);
  check_keys(fast, {"devices", "rows", "prompt_len"});
  CHECK(fast["rows"].size() == 5);
  CHECK(fast["rows"][0]["ttft_speedup"] == 1);
  const json slow = run_json("choose devices --json --prompt-len 16k --link-gb-per-s 0.1" + a100);
  CHECK(slow["devices"] <= fast["devices"]);
  CHECK(slow["devices"] < 16);
  const json from =
      run_json("choose devices --json --break-even --max-devices 4 --prompt-len 16k" + a100);
  CHECK(from["rows"][0]["break_even_prompt_len"].is_null());
  for (const std::size_t i : {1u, 2u}) {  // both pay off
    CHECK(from["rows"][i]["pays_off"] == true);
    CHECK(from["rows"][i]["break_even_link_bytes_per_s"] < from["link_bytes_per_s"]);
    CHECK(from["rows"][i]["break_even_prompt_len"] < 16384);
  }
  CHECK_FALSE(fast["rows"][1].contains("break_even_prompt_len"));
}

TEST_CASE("choose devices: none pays off where none fits, and states have no TSP") {
  const std::string large = "choose devices --model deepseek-v3 --hardware a100-80gb ";
  const json j = run_json(large + "--json");
  CHECK(j["devices"].is_null());
  for (const json& row : j["rows"]) {
    CHECK(row["fits"] == false);
    CHECK(row["pays_off"] == false);
  }
  const ProgramResult told = run_well(large);
  CHECK(contains(told.errors, "no number of devices fits"));
  CHECK(contains(told.output, "does not fit"));
  const json states =
      run_json("choose devices --model falcon-h1-0.5b --hardware h100-sxm --prompt-len 4k --json");
  CHECK(states["rows"][1]["pays_off"] == true);
  CHECK(states["rows"][1]["tsp_ttft_s"].is_null());
  // A cache of 16k tokens beside the weights: what estimate says.
  const json rows = run_json("choose devices --json --prompt-len 16k" + a100)["rows"];
  const json one = run_json("estimate --json --prompt-len 16k --output-len 1" + a100);
  CHECK(rows[0]["peak_memory_bytes"] == one["peak_memory_bytes"]);
  CHECK(rows[0]["fits"] == true);
  std::string partition;
  for (const json& tokens : rows[2]["partition_tokens"]) {
    partition += (partition.empty() ? "" : "/") + std::to_string(tokens.get<int>());
  }
  const json four = run_json("estimate --json --prompt-len 16k --output-len 1 --method kvr:p=4," +
                             ("partition=" + partition) + a100);
  CHECK(rows[2]["devices"] == 4);
  CHECK(rows[2]["peak_memory_bytes"] == four["peak_memory_bytes"]);
  // The link is too slow for two devices to pay off, and one does not hold the prompt.
  const json two = run_json(
      "choose devices --json --model llama-7b --hardware a100-80gb --attention eager "
      "--link-gb-per-s 0.05 --prompt-len 17200 --max-devices 2");
  CHECK(two["rows"][0]["fits"] == false);
  CHECK(two["rows"][1]["pays_off"] == false);
  CHECK(two["devices"] == 2);
}

}  // namespace
}  // namespace kvcast::cli
