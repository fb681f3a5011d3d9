// `validate quality`.
#include <cmath>
#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string gqa_model = oracle + "llama_gqa_llama3_rope";
const std::string quality =
    "validate quality --quiet --json --threads 1 --model " + gqa_model + " --text ";

std::string write_ids(const TestFolder& folder) {
  json ids = json::array();
  for (int i = 0; i < 80; ++i) ids.push_back((i * i * 7 + 11 * i + 3) % 41);
  write(folder / "ids.json", ids.dump());
  return folder.file("ids.json");
}

TEST_CASE("validate quality: rows, intervals, a CSV and plots; with keep=1 the base itself") {
  const TestFolder folder;
  const std::string arguments = quality + write_ids(folder) +
                                " --samples 3 --prompt-len 12 --continuation 4 "
                                "--method \"specprefill:lookahead=2;random-prune\" --keep 0.5,1 ";
  const std::string csv = folder.file("q.csv");
  const json j = run_json(arguments + "--csv " + csv + " --plot " + folder.file("p.svg"));
  REQUIRE(j["rows"].size() == 5);
  check_keys(j["rows"][0], {"task", "method", "keep", "samples", "positions", "agreement",
                            "kl_nats", "perplexity", "perplexity_ratio", "answered", "ttft_s",
                            "ttft_speedup", "tpot_s", "memory_bytes", "on_front"});
  for (const json& row : j["rows"]) {
    CAPTURE(row["method"]);
    CHECK(row["positions"] == 12);
    CHECK(row["ttft_s"].get<double>() > 0);
    if (row["keep"] == 0.5) {
      CHECK(row["kl_nats"]["mean"].get<double>() > 1e-4);
      continue;
    }
    CHECK(row["agreement"]["mean"] == 1);
    CHECK(std::abs(row["kl_nats"]["mean"].get<double>()) < 1e-6);
    CHECK(row["perplexity_ratio"]["mean"].get<double>() == near(1).epsilon(1e-6));
  }
  for (const char* file :
       {"q.csv", "p.svg", "p-agreement.svg", "p-keep.svg", "p-tpot.svg", "p-memory.svg"}) {
    CAPTURE(file);
    CHECK(fs::exists(folder / file));
  }
  // Times of an earlier run in the place of this one's.
  const json timed = run_json(arguments + "--csv " + folder.file("again.csv") + " --times " + csv);
  CHECK(timed["rows"][1]["ttft_s"] == j["rows"][1]["ttft_s"]);
}

TEST_CASE("validate quality: the same model in other types stands beside the methods") {
  const TestFolder folder;
  const std::string half = folder.file("half");
  run_well("convert quantize -q " + gqa_model + " " + half + " --type bf16");
  const std::string arguments =
      quality + write_ids(folder) +
      " --samples 2 --prompt-len 12 --continuation 4 --method plain --csv " + folder.file("q.csv") +
      " --weights-of " + half;
  const json j = run_json(arguments + " --arithmetic fp32,bf16 --cache-dtype fp32,int8");
  REQUIRE(j["rows"].size() == 8);
  CHECK(j["rows"][0]["method"] == "plain");
  CHECK(j["rows"][1]["method"] == "plain [cache int8]");
  CHECK(j["rows"][7]["method"] == "plain [half bf16 cache int8]");
  CHECK(j["rows"][4]["method"] == "plain [half]");
  // Half of the matrices' bytes; norms, rows of the embedding and the cache stay in fp32.
  const auto memory = [&](std::size_t row) { return j["rows"][row]["memory_bytes"].get<double>(); };
  CHECK(memory(4) > 0.5 * memory(0));
  CHECK(memory(4) < 0.7 * memory(0));
  CHECK(j["rows"][4]["kl_nats"]["mean"].get<double>() > 0);
  check_refused(arguments + " --arithmetic fp31", "--arithmetic: got fp31");
  check_refused(arguments + " --cache-dtype int3", "--cache-dtype: got int3");
  check_refused(arguments + " --restart --weights-of /no/such/folder", "/no/such/folder");
}

TEST_CASE("validate quality: the base named as its own speculator is the same as none named") {
  const TestFolder folder;
  const json j =
      run_json(quality + write_ids(folder) + " --samples 2 --prompt-len 12 --continuation 4 " +
               "--method \"specprefill:lookahead=2,reuse=kept;specprefill:lookahead=2,"
               "reuse=kept,speculator=" +
               gqa_model + "\" --keep 0.5 --csv " + folder.file("q.csv"));
  REQUIRE(j["rows"].size() == 3);
  CHECK(contains(j["rows"][2]["method"], "speculator=" + gqa_model));
  check_equal(j["rows"][2], j["rows"][1], {"agreement", "kl_nats", "perplexity"});
}

}  // namespace
}  // namespace kvcast::cli
