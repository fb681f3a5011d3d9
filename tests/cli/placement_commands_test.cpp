// `estimate` and `sweep` with the methods kvr and tsp.
#include <string>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

const std::string base = "--quiet --model llama-7b --hardware a100-80gb --prompt-len 1000 ";
const std::string estimate = "estimate " + base;

TEST_CASE("estimate: kvr and tsp on one device are plain") {
  // Stored validations are of methods by name, and of plain alone so far.
  const auto without_bounds = [](json j) {
    for (const char* key :
         {"ttft_error_bound", "tpot_error_bound", "ttft_error_rows", "tpot_error_rows",
          "ttft_error_population", "tpot_error_population", "error_bound_note"}) {
      CHECK(j.erase(key) == 1);
    }
    return j;
  };
  const json plain = without_bounds(run_json(estimate + "--json"));
  for (const char* method : {"kvr:p=1", "tsp:p=1"}) {
    json one = without_bounds(run_json(estimate + "--json --method " + method));
    CHECK(one["method"] == method);
    one["method"] = plain["method"];
    CHECK(one == plain);
  }
}

TEST_CASE("estimate: says how many devices there are in all") {
  const auto says = [](const std::string& methods, const std::string& devices) {
    return contains(run_well(estimate + methods).output, "llama-7b on " + devices + "NVIDIA A100");
  };
  CHECK(says("--method plain", ""));
  CHECK(says("--method kvr:p=4", "4 x "));
  CHECK(says("--method kvr:p=2 --tp 2", "4 x "));
  CHECK(says("--tp 2 --dp 2", "4 x "));
}

TEST_CASE("estimate: two replicas take as long as one device with half the batch") {
  for (const std::string method :
       {"plain", "kvp:auxiliary=openelm-270m", "lazyllm:begin=0.9,end=0.5"}) {
    const std::string of =
        "estimate --json --model openelm-1.1b --hardware a100-80gb --method " + method;
    CAPTURE(method);
    const json both = run_json(of + " --dp 2 --batch 4");
    const json one = run_json(of + " --batch 2");
    CHECK(both["ttft_s"] == one["ttft_s"]);
    CHECK(both["tpot_s"] == one["tpot_s"]);
    CHECK(both["devices"] == 2);
  }
}

TEST_CASE("estimate: the breakdown of a pipeline has the times of its operators") {
  const std::string text =
      run_well(
          "estimate --model llama-3.1-8b --hardware h100-sxm --pp 2 --tp 2 --batch 4 --breakdown")
          .output;
  CHECK(contains(text, "ms  bound\n"));
  CHECK(contains(text, "prefill of stage 1"));
}

TEST_CASE("sweep: says where replicas do not share a batch evenly, as estimate does") {
  const std::string of =
      "--model gpt2 --hardware a100-80gb --prompt-len 64 --output-len 2 --batch 8";
  const std::string line =
      "8 sequences do not divide evenly among 3 replicas: each is taken to have 3";
  check_contains(run_well("estimate " + of + " --dp 3").errors, {line + "\n"});
  check_contains(run_well("sweep " + of + ",9 --dp 3,4").errors, {line + " (and 1 more)\n"});
  CHECK_FALSE(contains(run_well("sweep " + of + " --dp 2,4").errors, "evenly"));
}

TEST_CASE("sweep: ranks of a chain are on the named platform, as in estimate") {
  const std::string of = "--quiet --model llama-3.1-8b --hardware h100-sxm --prompt-len 32k ";
  const std::string kvr = of + "--method kvr:p=16 --platform ";
  const json one = run_json("estimate --json " + kvr + "hgx-h100-2");
  const TestFolder folder;
  run_well("sweep " + kvr + "hgx-h100-2,hgx-h100 --csv '" + folder.file("rows.csv") + "'");
  const CsvTable table = CsvTable::read(folder.file("rows.csv"));
  CHECK(table[0].number("ttft_s") == one["ttft_s"].get<double>());
  CHECK(contains(table[1].text("error"), "got hgx-h100 of 8 devices"));
}

TEST_CASE("estimate: messages within the ranks of a chain are a part of TTFT") {
  const json j = run_json(estimate + "--json --batch 4 --tp 2 --method kvr:p=4");
  const double ttft_s = j["ttft_s"];
  // No less than a quarter of what the whole prompt's collectives take on one group.
  const json whole = run_json(estimate + "--json --batch 4 --tp 2");
  CHECK(j["communication_s"] > whole["communication_s"].get<double>() / 4);
  CHECK(j["communication_s"] < ttft_s);
}

TEST_CASE("estimate: parts of a layer convert what they read, each for itself") {
  const json j = run_json(
      "estimate --quiet --json --model llama-7b --hardware rtx-4090 --engine exllama "
      "--weight-dtype "
      "int4 --method tsp:p=2");
  CHECK(j.at("ttft_s") > 0);
}

TEST_CASE("estimate: even kvr, and tsp, have the TTFT that simulate prefill plays on a ring") {
  const std::string link = "--link-gb-per-s 10 --link-latency-s 1e-5 ";
  for (const auto& [method, schedule] :
       {std::pair{"kvr:p=4,partition=even", "kvr"}, std::pair{"kvr:p=4", "kvr"},
        std::pair{"tsp:p=4", "tsp"}}) {
    const json e = run_json(estimate + link + "--json --method " + method);
    const json played = run_json("simulate prefill " + base + link +
                                 "--devices 4 --topology ring --json --schedule " + schedule);
    check_equal(e, played, {"ttft_s", "partition_tokens", "message_bytes"});
    CHECK(e["ttft_speedup"].get<double>() ==
          near(played["ttft_speedup"].get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("estimate: kvr with partition=search takes the searched one, over the hardware's link") {
  const json e = run_json(estimate + "--json --breakdown --method kvr:p=3,partition=search");
  const json found = run_json("partition search --json --devices 3 " + base);
  check_equal(e, found, {"partition_tokens", "lower_bound_s", "evaluations"});
  CHECK(e["link_bytes_per_s"] == 300e9);  // NVLink of an A100, one direction
  const json nvlink = run_json(estimate + "--json --link nvlink --method kvr:p=3,partition=search");
  CHECK(nvlink["ttft_s"] == e["ttft_s"]);
  const json pcie = run_json(estimate + "--json --link pcie --method kvr:p=3,partition=search");
  CHECK(pcie["link_bytes_per_s"] == 32e9);
  CHECK(pcie["ttft_s"] > e["ttft_s"]);

  REQUIRE(e["by_device"].size() == 3);
  for (const json& device : e["by_device"]) {
    CHECK(device["compute_s"].get<double>() + device["waiting_s"].get<double>() ==
          near(device["finish_s"].get<double>()));
  }
  CHECK(e["by_device"][2]["finish_s"] == e["ttft_s"]);
  for (const json& row : e["breakdown"]) CHECK(row["pass"] == "decode");
}

TEST_CASE("sweep: rows of kvr and tsp are what estimate says") {
  const TestFolder folder;
  const std::string csv = folder.file("a.csv");
  run_well("sweep " + base + "--output-len 8 --csv " + csv +
           " --method 'plain;kvr:p=2,partition=search;kvr:p=2,partition=600/400;"
           "slim:option=kcache+tsp:p=2'");
  const CsvTable table = CsvTable::read(csv);
  REQUIRE(table.size() == 4);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string method = table[i].text("method");
    CAPTURE(method);
    const json e = run_json(estimate + "--json --output-len 8 --method " + method);
    check_row(table[i], e,
              {"ttft_s", "tpot_s", "prefill_flops", "prefill_bytes", "kv_cache_bytes",
               "peak_memory_bytes", "ttft_speedup", "kv_cache_ratio"});
  }
}

}  // namespace
}  // namespace kvcast::cli
