// The keys that the command-line contract promises.
#include <algorithm>
#include <fstream>
#include <string>

#include "tests/cli/program.h"
#include "tests/test_folder.h"

namespace kvcast::cli {

TEST_CASE("contract: estimate --json has every key, in base units") {
  const json j = run_json(
      "estimate --quiet --model llama-7b --hardware a100-80gb --method plain --attention tiled "
      "--dtype fp16 --batch 2 --prompt-len 1000 --output-len 24 --json --breakdown");
  check_keys(j, {"ttft_s", "tpot_s", "prefill_flops", "prefill_bytes", "decode_flops_per_token",
                 "decode_bytes_per_token", "kv_cache_bytes", "weight_bytes", "peak_memory_bytes",
                 "fits", "bound", "ttft_speedup", "tpot_speedup", "kv_cache_ratio", "breakdown"});
  // Llama 7B: 6,738,415,616 parameters of 2 bytes; 2·32 layers·4096 features·2 bytes a token.
  CHECK(j["weight_bytes"] == 2 * std::uint64_t{6738415616});
  CHECK(j["kv_cache_bytes"] == std::uint64_t{2} * 1024 * 2 * 32 * 4096 * 2);
  CHECK(j["ttft_speedup"] == 1.0);
  double prefill_s = 0;
  std::uint64_t prefill_flops = 0;
  for (const json& row : j["breakdown"]) {
    if (row["pass"] != "prefill") continue;
    prefill_s += row["seconds"].get<double>();
    prefill_flops += row["flops"].get<std::uint64_t>();
  }
  CHECK(prefill_s == near(j["ttft_s"].get<double>()).epsilon(1e-12));
  CHECK(prefill_flops == j["prefill_flops"]);
}

TEST_CASE("contract: model show and hardware show have every key") {
  const json model = run_json("model show llama-3.1-8b --json");
  check_keys(model, {"name", "parameters", "num_hidden_layers", "hidden_size",
                     "kv_cache_bytes_per_token"});
  CHECK(model["parameters"] == std::uint64_t{8030261248});
  CHECK(model["kv_cache_bytes_per_token"] == 2 * 32 * 8 * 128 * 2);

  const json hardware = run_json("hardware show a100-80gb --json");
  check_keys(hardware, {"name", "peak_flops_per_second", "memory_bandwidth_bytes_per_s",
                        "memory_capacity_bytes"});
  CHECK(hardware["peak_flops_per_second"]["fp16"] == 312e12);
  CHECK(hardware["memory_bandwidth_bytes_per_s"] == 2039e9);
  check_keys(hardware["sources"],
             {"peak_flops_per_second", "memory_bandwidth_bytes_per_s", "memory_capacity_bytes"});
  CHECK(hardware["sources"]["memory_bandwidth_bytes_per_s"]["source"] == "datasheet");
}

TEST_CASE("contract: weights are forecast as they are stored, or as --weight-dtype says") {
  const std::string gpt_oss = "estimate --quiet --model gpt-oss-20b --hardware h100-sxm --json ";
  const json stored = run_json(gpt_oss);
  CHECK(stored["weight_dtype"] == "mxfp4");
  for (const json& line : stored["warnings"]) {
    CHECK(line.get<std::string>().find("--weight-dtype") == std::string::npos);
  }
  CHECK(stored["weight_bytes"] == near(13761264768.0).epsilon(0.01));
  const json given = run_json(gpt_oss + "--weight-dtype bf16,experts=mxfp4");
  CHECK(given["weight_dtype"] == "bf16,experts=mxfp4");
  CHECK(given["weight_bytes"] == stored["weight_bytes"]);
  CHECK(run_json(gpt_oss + "--weight-dtype fp16")["weight_bytes"] ==
        2 * std::uint64_t{20914757184});
  CHECK(run_well("estimate --quiet --model gpt-oss-20b --hardware h100-sxm")
            .output.find("mxfp4, as stored") != std::string::npos);
  const json shown = run_json("model show llama-3.1-8b --weight-dtype q4_k_m --json");
  CHECK(shown["weight_bytes_by_class"]["head"] == std::uint64_t{128256} * 4096 * 105 / 128);
}

TEST_CASE("contract: engine show has every value with its source, engine list every name") {
  const json j = run_json("engine show vllm:0.6.3 --json");
  check_keys(j, {"name", "version", "description", "attention", "launches", "host_sequence",
                 "scheduler.max_running_sequences", "sources"});
  CHECK(j["name"] == "vllm");
  CHECK(j["version"] == "0.6.3");
  CHECK(j["attention"] == "tiled");
  CHECK(j["launches"].is_array());
  for (const auto& [key, source] : j["sources"].items()) {
    CAPTURE(key);
    CHECK(j.contains(key));
    check_keys(source, {"source", "reference"});
  }
  CHECK(j.size() == j["sources"].size() + 4);
  const std::string text = run_well("engine show vllm:0.6.3").output;
  check_contains(text, {"vllm 0.6.3: vLLM\n", "query+key+value+attention_gate ", "host_sequence"});
  CHECK(run_well("engine show ideal").output.starts_with("ideal: No engine"));
  const json list = run_json("engine list --json");
  REQUIRE(list.size() > 5);
  for (const json& row : list) check_keys(row, {"name", "versions", "description", "attention"});
  check_contains(run_well("engine list").output, {"tensorrt-llm", "0.6, 0.8"});
}

TEST_CASE("contract: platform list has every platform, platform show every value and its source") {
  const json list = run_json("platform list --json");
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(KVCAST_SOURCE_DIR) / "data/platforms")) {
    if (entry.path().extension() == ".json") ++files;
  }
  CHECK(list.size() == files);
  const auto row = [&](const std::string& name) {
    return *std::find_if(list.begin(), list.end(),
                         [&](const json& r) { return r["name"] == name; });
  };
  CHECK(row("dgx-a100-2")["nodes"] == 2);
  CHECK(row("dgx-a100-2")["devices_per_node"] == 8);
  CHECK(row("dgx-a100-2")["hardware"] == "a100-80gb");
  CHECK(row("chain-4")["devices_per_node"] == 4);
  CHECK(row("chain-4")["topology"] == "link by link");
  // Its own network, the rest of the node that it extends.
  const json two = run_json("platform show hgx-h100-2 --json");
  CHECK(two["network"]["bandwidth"]["value"] == "50 GB/s");
  CHECK(two["hardware"] == "h100-sxm");
  check_contains(run_well("platform show hgx-h100-2").output,
                 {"hgx-h100-2: two HGX H100 nodes", "network payload", "47 GB/s", "measured",
                  "libraries nccl ring", "fitted"});
  check_contains(run_well("platform list").output, {"fat-tree-16", "hgx-h100-128"});
  // A key with null is a missing one.
  json unnamed = run_json("platform show hgx-h100 --json");
  unnamed["name"] = unnamed["description"] = unnamed["nodes"] = nullptr;
  const TestFolder folder;
  std::ofstream(folder / "unnamed.json") << unnamed;
  CHECK(contains(run_well("platform show " + folder.file("unnamed.json")).output, "450 GB/s"));
}

TEST_CASE("contract: reproduce --json has rows and a summary") {
  const json j = run_json("reproduce --json slim-table1");
  REQUIRE(j["rows"].size() == 24);
  check_keys(j["rows"][0], {"source", "cell", "published", "ours", "relative_error"});
}

TEST_CASE("contract: reproduce shows a cell that an erratum corrects as an erratum, not as exact") {
  const json j = run_json("reproduce --json kvp-table3");
  REQUIRE(j["rows"].size() == 11);
  std::size_t errata = 0;
  for (const json& row : j["rows"]) {
    CAPTURE(row["cell"]);
    // E10: LP-0.25, with KVP and without, is 3.5974 and printed as 3.59.
    const bool misprint = row["published"] == "3.59";
    CHECK(row["verdict"] == (misprint ? "erratum" : "exact"));
    CHECK(row["erratum"].get<std::string>().starts_with("E10: ") == misprint);
    if (misprint) ++errata;
  }
  CHECK(errata == 2);
  const json& sums = j["summary"][0];
  CHECK(sums["cells"] == 11);
  CHECK(sums["exact"] == 9);
  CHECK(sums["exact_agree"] == 9);
  CHECK(sums["corrected"] == 2);
  CHECK(sums["errata"] == 2);
  check_equal(j["papers"][0], sums, {"exact", "corrected"});
  CHECK(contains(run_well("reproduce kvp-table3").output, "  erratum  E10: "));
  // Rows that are all fitted have no mean error.
  const std::string fitted = run_program("reproduce kvp-section3 --summary").output;
  CHECK(contains(fitted, "kvp-section3"));
  CHECK_FALSE(contains(fitted, "%"));
}

TEST_CASE("contract: reproduce --csv - writes its rows to stdout, and nothing else") {
  const ProgramResult result = run_well("reproduce --csv - slim-table1");
  CHECK(result.output.rfind("table,source,cell,published,ours", 0) == 0);
  CHECK(num_lines(result.output) == 25);
}

TEST_CASE("contract: reproduce --plot and --csv write the picture, its points and the rows") {
  const TestFolder folder;
  run_well("reproduce kvp-table3 --plot " + folder.file("plot.svg") + " --csv " +
           folder.file("cells.csv"));
  for (const char* file : {"plot.svg", "plot.csv", "cells.csv"}) {
    CHECK(fs::file_size(folder / file) > 0);
  }
}

TEST_CASE("contract: a prompt beyond the context is answered, with a warning") {
  const ProgramResult result =
      run_well("estimate --model llama-7b --hardware a100-80gb --prompt-len 1M --json");
  CHECK(contains(result.output, "\"fits\": false"));
  CHECK(contains(result.errors,
                 "warning: prompt and output of 1048704 tokens is longer than the context of "
                 "llama-7b (2048 positions)"));
}

TEST_CASE("contract: what does not fit the memory is an answer, with status 0") {
  CHECK(
      contains(run_well("estimate --quiet --model llama-3.1-405b --hardware rtx-3060-12gb").output,
               "does not fit 12 GB"));
}

TEST_CASE("contract: a sweep warns once for each model beyond its context") {
  const ProgramResult result =
      run_well("sweep --model gpt2,llama-3.1-8b --hardware a100-80gb --prompt-len 512,8k --csv -");
  CHECK(contains(result.errors,
                 "warning: prompt and output of 8320 tokens is longer than the context "
                 "of gpt2 (1024 positions)"));
  CHECK_FALSE(contains(result.errors, "llama-3.1-8b"));
}

TEST_CASE("contract: --help goes to stdout with status 0 and starts with examples") {
  for (const char* command : {"", "estimate ", "sweep ", "model ", "hardware ", "reproduce ",
                              "convert ", "convert mlkv ", "choose ", "choose mlkv ", "simulate ",
                              "simulate prefill ", "explore ", "report ", "man ", "completion "}) {
    const ProgramResult result = run_well(std::string(command) + "--help");
    CAPTURE(command);
    CHECK(result.errors.empty());
    CHECK(contains(result.output, "Examples:"));
  }
}

TEST_CASE("contract: explore writes the page that the build made, or says that there is none") {
  const fs::path built = fs::path(KVCAST_PROGRAM).parent_path() / "explorer.html";
  const TestFolder folder;
  const std::string page = folder.file("page.html");
  const ProgramResult result = run_program("explore --output " + page);
  if (!fs::exists(built)) {
    CHECK(result.status == 1);
    CHECK(contains(result.errors, "the explorer's page was not built"));
    CHECK_FALSE(fs::exists(page));
    return;
  }
  CHECK(result.status == 0);
  CHECK(result.output == page + "\n");
  CHECK(fs::file_size(page) == fs::file_size(built));
}

TEST_CASE("contract: --set changes the model") {
  const json mha = run_json("model show llama-7b --json");
  const json mqa = run_json("model show llama-7b --json --set num_key_value_heads=1");
  CHECK(mqa["kv_cache_bytes_per_token"].get<int>() * 32 == mha["kv_cache_bytes_per_token"]);
}

TEST_CASE("contract: model show --graph writes Graphviz") {
  const TestFolder folder;
  run_well("model show llama-7b --graph " + folder.file("graph.dot"));
  const std::string text = contents(folder / "graph.dot");
  CHECK(text.starts_with("digraph"));
  CHECK(contains(text, "layer 0 to 31 (x32)"));
}

}  // namespace kvcast::cli
