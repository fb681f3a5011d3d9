// `estimate` and `sweep` with the methods kvr and tsp.
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

using nlohmann::json;

const std::string base = "--quiet --model llama-7b --hardware a100-80gb --prompt-len 1000 ";
const std::string estimate = "estimate " + base;

TEST_CASE("estimate: kvr and tsp on one device are plain") {
  // Stored validations are of methods by name, and of plain alone so far.
  const auto without_bounds = [](json j) {
    for (const char* key : {"ttft_error_bound", "tpot_error_bound", "ttft_error_rows",
                            "tpot_error_rows", "error_bound_note"}) {
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

TEST_CASE("estimate: even kvr, and tsp, have the TTFT that simulate prefill plays on a ring") {
  const std::string link = "--link-gb-per-s 10 --link-latency-s 1e-5 ";
  for (const auto& [method, schedule] :
       {std::pair{"kvr:p=4,partition=even", "kvr"}, std::pair{"kvr:p=4", "kvr"},
        std::pair{"tsp:p=4", "tsp"}}) {
    const json e = run_json(estimate + link + "--json --method " + method);
    const json played = run_json("simulate prefill " + base + link +
                                 "--devices 4 --topology ring --json --schedule " + schedule);
    CHECK(e["ttft_s"] == played["ttft_s"]);
    CHECK(e["partition_tokens"] == played["partition_tokens"]);
    CHECK(e["message_bytes"] == played["message_bytes"]);
    CHECK(e["ttft_speedup"].get<double>() ==
          near(played["ttft_speedup"].get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("estimate: kvr with partition=search takes the searched one, over the hardware's link") {
  const json e = run_json(estimate + "--json --breakdown --method kvr:p=3,partition=search");
  const json found = run_json("partition search --json --devices 3 " + base);
  CHECK(e["partition_tokens"] == found["partition_tokens"]);
  CHECK(e["lower_bound_s"] == found["lower_bound_s"]);
  CHECK(e["evaluations"] == found["evaluations"]);
  CHECK(e["link_bytes_per_s"] == 300e9);  // NVLink of an A100, one direction
  const json nvlink = run_json(estimate + "--json --link nvlink --method kvr:p=3,partition=search");
  CHECK(nvlink["ttft_s"] == e["ttft_s"]);
  const json pcie = run_json(estimate + "--json --link pcie --method kvr:p=3,partition=search");
  CHECK(pcie["link_bytes_per_s"] == 32e9);
  CHECK(pcie["ttft_s"] > e["ttft_s"]);

  REQUIRE(e["devices"].size() == 3);
  for (const json& device : e["devices"]) {
    CHECK(device["compute_s"].get<double>() + device["waiting_s"].get<double>() ==
          near(device["finish_s"].get<double>()));
  }
  CHECK(e["devices"][2]["finish_s"] == e["ttft_s"]);
  for (const json& row : e["breakdown"]) CHECK(row["pass"] == "decode");
}

TEST_CASE("sweep: rows of kvr and tsp are what estimate says") {
  const TestFolder folder;
  const std::string csv = (folder / "a.csv").string();
  const ProgramResult sweep =
      run_program("sweep " + base + "--output-len 8 --csv " + csv +
                  " --method 'plain;kvr:p=2,partition=search;kvr:p=2,partition=600/400;"
                  "slim:option=kcache+tsp:p=2'");
  CAPTURE(sweep.errors);
  REQUIRE(sweep.status == 0);
  const CsvTable table = CsvTable::read(csv);
  REQUIRE(table.size() == 4);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string method = table[i].text("method");
    CAPTURE(method);
    const json e = run_json(estimate + "--json --output-len 8 --method " + method);
    for (const char* key : {"ttft_s", "tpot_s", "prefill_flops", "prefill_bytes", "kv_cache_bytes",
                            "peak_memory_bytes", "ttft_speedup", "kv_cache_ratio"}) {
      CAPTURE(key);
      CHECK(table[i].number(key) == e[key].get<double>());
    }
  }
}

TEST_CASE("estimate: kvr and tsp that cannot be are refused in one line") {
  const std::string kvr = estimate + "--method ";
  check_refused(kvr + "kvr", "method kvr: option 'p' is missing");
  check_refused(kvr + "kvr:p=0", "option p");
  check_refused(kvr + "kvr:p=2,partition=600/300", "expected 900, the sum of 600/300");
  check_refused(kvr + "kvr:p=3,partition=600/400", "got 2 parts, expected 3");
  check_refused(kvr + "kvr:p=2,partition=serach", "even, search, or the tokens of each rank");
  check_refused(kvr + "tsp:p=2,partition=600/400", "partition");
  check_refused(kvr + "tsp:p=1001", "a token at least for each rank");
  check_refused(kvr + "kvr:p=1025", "at most 1024");
  check_refused(kvr + "kvr:p=2+tsp:p=2", "placement");
  check_refused(kvr + "lazyllm:begin=0.8,end=0.4+kvr:p=2", "method lazyllm beside it");
  check_refused(kvr + "kvr:p=2 --link nvlnk", "did you mean 'nvlink'?");
  check_refused(kvr + "kvr:p=2 --link-gb-per-s 0", "--link-gb-per-s: got '0'");
  check_refused(kvr + "kvr:p=2 --link-latency-s -1", "--link-latency-s: got '-1'");
  check_refused(kvr + "plain --link nvlink", "--link: got method plain");
  check_refused(kvr + "kvr:p=2 --plot x.svg", "kvcast simulate prefill --plot");
  check_refused("estimate --model llama-7b --hardware x86-server-cpu --dtype fp32 --method kvr:p=2",
                "no links");
  check_refused("estimate --model whisper-base --hardware a100-80gb --method kvr:p=2",
                "encoder-decoder");
}

}  // namespace
}  // namespace kvcast::cli
