// `convert mlkv`, `choose mlkv` and `--semantics`.
#include <algorithm>
#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

TEST_CASE("convert mlkv: the new checkpoint runs, and --json says what changed") {
  const TestFolder folder;
  const std::string out = folder.file("out");
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
  check_counted(plain);
  CHECK(run_json(run + " --method mlkv:layers=1,heads=1")["generated_tokens"] ==
        plain["generated_tokens"]);
}

TEST_CASE("convert mlkv: of a GGUF file, all layers and heads kept, the tokens stay the same") {
  if (smollm_is_missing()) return;
  const TestFolder folder;
  const std::string out = folder.file("out");
  run_well("convert mlkv --quiet " + smollm.string() + " " + out + " --kv-layers 30 --kv-heads 3");
  const std::string run =
      "run --quiet --json --tokens 504,3575,282,4649,314 --output-len 8 --model ";
  CHECK(run_json(run + out)["generated_tokens"] ==
        run_json(run + smollm.string())["generated_tokens"]);
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
  const std::string csv = run_well(choose + "--csv -").output;
  CHECK(csv.starts_with("rank,kv_layers,kv_heads,"));
  CHECK(num_lines(csv) == 37);
  CHECK(contains(run_program(choose).output, "  published\n"));
  CHECK_FALSE(
      contains(run_well("choose mlkv --model llama-7b --hardware a100-80gb").output, "accuracy"));
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

TEST_CASE("choose mlkv: a budget is enough, and without a device no times are printed") {
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
  CHECK(contains(run_program(choose).output, "TPOT needs --hardware"));
  CHECK_FALSE(
      contains(run_well(choose + "--hardware rtx-3060-12gb").output, "TPOT needs --hardware"));
  for (const char* dtype : {"fp32", "bf16", "fp8"}) run_well(choose + "--dtype " + dtype);
  CHECK(contains(run_well(choose + "--csv -").output, ",,"));
}

}  // namespace
}  // namespace kvcast::cli
