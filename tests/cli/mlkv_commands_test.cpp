// `convert mlkv`, `choose mlkv` and `--semantics`.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string oracle = std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/";

TEST_CASE("convert mlkv: the new checkpoint runs, and --json says what changed") {
  const TestFolder folder;
  const std::string out = (folder / "out").string();
  const json j = run_json("convert mlkv --quiet --json " + oracle + "gpt_neox " + out +
                          " --kv-layers 1 --kv-heads 1 --merge sequential --widen copy");
  check_keys(j, {"kv_layers", "kv_heads", "owners", "merged_layers", "parameters_before",
                 "parameters_after", "kv_cache_ratio", "intermediate_size", "merge", "widen"});
  CHECK(j["kv_cache_ratio"].get<double>() == near(1.0 / 6));  // of 2 layers of 3 heads
  CHECK(j["merged_layers"] == json::parse("[[0, 1]]"));
  // 5 heads less: 5 · (2 · 24 · 8 + 16) = 2000, 1000 a layer, 41.7 rows of 24, 21 neurons.
  CHECK(j["intermediate_size"] == 59 + 21);
  CHECK(j["parameters_before"].get<int>() - j["parameters_after"].get<int>() ==
        2000 - 2 * 21 * (2 * 24 + 1));
  CHECK(run_json("model show --json " + out)["parameters"] == j["parameters_after"]);

  const std::string run = "run --quiet --json --count --tokens 1,2,3 --output-len 4 --model " + out;
  const json plain = run_json(run);
  // 3 + 4 slots of 1 layer with 1 head of 8.
  CHECK(plain["kv_cache_bytes"] == 2 * (3 + 4) * 8 * 4);
  CHECK(plain["counted_flops"] == plain["analytic_flops"]);
  CHECK(plain["counted_bytes"] == plain["analytic_bytes"]);
  CHECK(run_json(run + " --method mlkv:layers=1,heads=1")["generated_tokens"] ==
        plain["generated_tokens"]);
}

TEST_CASE("convert mlkv: of a GGUF file, all layers and heads kept, the tokens stay the same") {
  const fs::path smollm = fs::path(KVCAST_SOURCE_DIR) / "weights" / "smollm2-135m-instruct.gguf";
  if (!fs::exists(smollm)) {
    MESSAGE("skipped: no " << smollm << "; `./run weights` fetches it");
    return;
  }
  const TestFolder folder;
  const std::string out = (folder / "out").string();
  REQUIRE(run_program("convert mlkv --quiet " + smollm.string() + " " + out +
                      " --kv-layers 30 --kv-heads 3")
              .status == 0);
  const std::string run =
      "run --quiet --json --tokens 504,3575,282,4649,314 --output-len 8 --model ";
  CHECK(run_json(run + out)["generated_tokens"] ==
        run_json(run + smollm.string())["generated_tokens"]);
}

TEST_CASE("convert mlkv: wrong requests are refused in one line, and leave nothing") {
  const TestFolder folder;
  const std::string out = " " + (folder / "out").string() + " ";
  const std::string convert = "convert mlkv ";
  const std::string neox = convert + oracle + "gpt_neox" + out;
  check_refused(neox + "--kv-layers 3 --kv-heads 1", "got 3 key-value layers, expected a divisor");
  check_refused(neox + "--kv-layers 1 --kv-heads 2", "got 2 key-value heads, expected a divisor");
  check_refused(neox + "--kv-layers 0 --kv-heads 1", "--kv-layers: got \"0\"");
  check_refused(neox + "--kv-layers -1 --kv-heads 1", "--kv-layers");
  check_refused(neox + "--kv-layers 1", "--kv-heads");
  check_refused(neox + "--kv-layers 1 --kv-heads 1 --merge average", "--merge: unknown merge");
  check_refused(neox + "--kv-layers 1 --kv-heads 1 --widen 2x", "--widen: unknown widening");
  check_refused(neox + "--kv-layers 1 --kv-heads 1 --dtype fp8",
                "got dtype fp8, expected fp64, fp32");
  check_refused(neox + "--kv-layers 1 --kv-heads 1 --dtype fp33", "--dtype");
  check_refused(convert + oracle + "mlkv_neox" + out + "--kv-layers 1 --kv-heads 1",
                "an MLKV model already");
  check_refused(convert + oracle + "falcon_7b" + out + "--kv-layers 1 --kv-heads 1",
                "expected one of gpt_neox, llama");
  check_refused(convert + oracle + "whisper" + out + "--kv-layers 1 --kv-heads 1",
                "a model of the type whisper");
  check_refused(convert + "/nowhere" + out + "--kv-layers 1 --kv-heads 1", "/nowhere");
  check_refused(convert + oracle + "gpt_neox " + oracle + "opt --kv-layers 1 --kv-heads 1",
                "a folder with files in it");
  CHECK(folder.num_files() == 0);
}

TEST_CASE("semantics: a flag and an option of the method say the same") {
  const std::string run =
      "run --quiet --json --output-len 8 --tokens 19,63,49,67,33 --model " + oracle + "mlkv_neox ";
  const json paper = run_json(run);
  const json released = run_json(run + "--semantics released");
  CHECK(released["generated_tokens"] != paper["generated_tokens"]);
  CHECK(released["method"] == "plain+mlkv:layers=2,heads=2,semantics=released");
  CHECK(run_json(run + "--semantics paper")["generated_tokens"] == paper["generated_tokens"]);
  CHECK(run_json(run + "--method mlkv:layers=2,heads=2,semantics=released")["generated_tokens"] ==
        released["generated_tokens"]);

  const std::string estimate =
      "estimate --quiet --json --hardware a100-80gb --prompt-len 64 --model pythia-160m ";
  const std::string method = "--method mlkv:layers=4,heads=1 ";
  const json e = run_json(estimate + method + "--semantics released");
  CHECK(e["decode_bytes_per_token"] > run_json(estimate + method)["decode_bytes_per_token"]);
  CHECK(e["kv_cache_ratio"].get<double>() == near(4.0 / 144));

  check_refused(run + "--semantics ours", "--semantics: unknown semantics 'ours'");
  check_refused(estimate + "--semantics released", "--semantics: got pythia-160m");
  check_refused(estimate + "--semantics paper --method mlkv:layers=4,heads=1,semantics=paper",
                "mean the same");
}

TEST_CASE("run: a method that needs converted weights names the conversion") {
  check_refused("run --tokens 1 --method mlkv:layers=1,heads=1 --model " + oracle + "gpt_neox",
                "'kvcast convert mlkv IN OUT --kv-layers 1 --kv-heads 1'");
}

TEST_CASE("choose mlkv: ranked rows, rejected ones with a reason, published accuracies") {
  const std::string choose =
      "choose mlkv --model pythia-160m --hardware rtx-3060-12gb --batch 100 --context 2k ";
  const json j = run_json(choose + "--json --memory-budget '6 GB'");
  REQUIRE(j["rows"].size() + j["rejected"].size() == 36);
  REQUIRE(!j["rows"].empty());
  REQUIRE(!j["rejected"].empty());
  check_keys(j["rows"][0], {"method", "kv_layers", "kv_heads", "kv_cache_bytes", "largest_batch",
                            "tpot_s", "peak_memory_bytes"});
  CHECK(j["memory_bytes"] == 6e9);
  for (const json& row : j["rows"]) CHECK(row["peak_memory_bytes"] <= 6e9);
  for (const json& row : j["rejected"]) CHECK(!row["reason"].get<std::string>().empty());
  const auto mqa = std::find_if(j["rows"].begin(), j["rows"].end(), [](const json& row) {
    return row["method"] == "mlkv:layers=12,heads=1";
  });
  REQUIRE(mqa != j["rows"].end());
  CHECK((*mqa)["published_accuracy_pct"] == 49.43);  // Table 3
  const json changed = run_json(choose + "--json --memory-budget 6GB --set intermediate_size=2048");
  for (const json& row : changed["rows"]) CHECK(!row.contains("published_accuracy_pct"));

  CHECK(run_json(choose + "--json --memory-budget 6000000000") == j);
  const ProgramResult csv = run_program(choose + "--csv -");
  CHECK(csv.status == 0);
  CHECK(csv.output.rfind("rank,kv_layers,kv_heads,", 0) == 0);
  CHECK(std::count(csv.output.begin(), csv.output.end(), '\n') == 37);
  CHECK(run_program(choose).output.find("accuracy, published") != std::string::npos);
  CHECK(run_program("choose mlkv --model llama-7b --hardware a100-80gb").output.find("accuracy") ==
        std::string::npos);

  check_refused("choose mlkv --model pythia-160m --hardware a100-80gb --memory-budget much",
                "--memory-budget");
  check_refused("choose mlkv --model pythia-160m --hardware a100-80gb --context 0", "--context");
  check_refused("choose mlkv --model falcon-7b --hardware a100-80gb", "a model of the type falcon");
}

// Table 2's models are widened to about as many parameters; all heads kept, nothing is widened.
TEST_CASE("choose mlkv: accuracies stand beside the published models alone, methods mean the row") {
  const std::string choose = "choose mlkv --model pythia-160m --json --hardware a100-80gb --widen ";
  const auto method_of = [](const json& row) { return row["method"].get<std::string>(); };
  for (const std::string widen : {"none", "copy", "preserve"}) {
    const json j = run_json(choose + widen);
    std::size_t published = 0;
    for (const json& row : j["rows"]) {
      if (row.contains("published_accuracy_pct")) ++published;
      if (row["kv_layers"] != 4) continue;
      const json e = run_json("estimate --json --model pythia-160m --hardware a100-80gb --method " +
                              method_of(row));
      CHECK(e["parameters"] == row["parameters"]);
    }
    CHECK(published == (widen == "none" ? 1 : 9));
  }
  CHECK(method_of(run_json(choose + "none")["rows"][0]) == "mlkv:layers=12,heads=12,widen=none");
}

TEST_CASE("choose mlkv: a budget is enough, and without a device nothing is said of speed") {
  const std::string choose =
      "choose mlkv --model pythia-160m --memory-budget 6000000000 --batch 100 --context 2k ";
  const json j = run_json(choose + "--json");
  CHECK(j["hardware"].is_null());
  CHECK(j["memory_bytes"] == 6e9);
  // Memory is the same on every device.
  const json device = run_json(choose + "--json --hardware rtx-3060-12gb");
  REQUIRE(j["rows"].size() == device["rows"].size());
  REQUIRE(!j["rows"].empty());
  for (const char* part : {"rows", "rejected"}) {
    for (std::size_t i = 0; i < j[part].size(); ++i) {
      CHECK(j[part][i]["tpot_s"].is_null());
      json row = device[part][i];
      row["tpot_s"] = nullptr;
      CHECK(j[part][i] == row);
    }
  }
  CHECK(run_program(choose).output.find("takes a --hardware") != std::string::npos);
  CHECK(run_program(choose + "--hardware rtx-3060-12gb").output.find("takes a --hardware") ==
        std::string::npos);
  for (const char* dtype : {"fp32", "bf16", "fp8"}) {
    CHECK(run_program(choose + "--dtype " + dtype).status == 0);
  }
  const ProgramResult csv = run_program(choose + "--csv -");
  CHECK(csv.output.find(",,") != std::string::npos);
  check_refused("choose mlkv --model pythia-160m --batch 100 --context 2k",
                "expected --memory-budget, or --hardware");
  check_refused("choose mlkv --model pythia-160m --memory-budget 6GB --hardware nothing",
                "nothing");
}

}  // namespace
}  // namespace kvcast::cli
