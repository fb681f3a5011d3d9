// `validate quality`.
#include <cmath>
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

const std::string model =
    "--model " + std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/llama_gqa_llama3_rope ";

std::string write_ids(const TestFolder& folder) {
  json ids = json::array();
  for (int i = 0; i < 80; ++i) ids.push_back((i * i * 7 + 11 * i + 3) % 41);
  const fs::path file = folder / "ids.json";
  std::ofstream(file) << ids;
  return file.string();
}

TEST_CASE("validate quality: rows, intervals, a CSV and plots; with keep=1 the base itself") {
  const TestFolder folder;
  const std::string arguments = "validate quality --quiet --json --threads 1 " + model + "--text " +
                                write_ids(folder) +
                                " --samples 3 --prompt-len 12 --continuation 4 "
                                "--method \"specprefill:lookahead=2;random-prune\" --keep 0.5,1 ";
  const std::string csv = (folder / "q.csv").string();
  const json j = run_json(arguments + "--csv " + csv + " --plot " + (folder / "p.svg").string());
  REQUIRE(j["rows"].size() == 5);
  check_keys(j["rows"][0],
             {"task", "method", "keep", "samples", "positions", "agreement", "kl_nats",
              "perplexity", "perplexity_ratio", "answered", "ttft_s", "ttft_speedup", "on_front"});
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
  for (const char* file : {"q.csv", "p.svg", "p-agreement.svg", "p-keep.svg"}) {
    CAPTURE(file);
    CHECK(fs::exists(folder / file));
  }
  // Times of an earlier run in the place of this one's.
  const json timed =
      run_json(arguments + "--csv " + (folder / "again.csv").string() + " --times " + csv);
  CHECK(timed["rows"][1]["ttft_s"] == j["rows"][1]["ttft_s"]);
}

TEST_CASE("validate quality: wrong requests") {
  const TestFolder folder;
  const std::string ids = write_ids(folder);
  const std::string csv = " --csv " + (folder / "q.csv").string();
  const std::string command = "validate quality --quiet " + model;
  check_refused(command + csv, "--text FILE, --needles N, or both");
  check_refused(command + csv + " --text " + ids, "expected at least 4608");
  const std::string small = csv + " --prompt-len 8 --continuation 2 --samples 2 --text " + ids;
  check_refused(command + small + " --keep 2", "--keep: got '2'");
  check_refused(command + small + " --method lazylm", "did you mean 'lazyllm'?");
  check_refused(command + small + " --method kvp:auxiliary=lp-0.50,predictor=/no/maps", "/no/maps");
  check_refused(command + small + " --plot q.gif", "q.gif");
  check_refused(command + small + " --plot " + (folder / "q.svg").string(), "another stem");
  for (const char* suffix : {"-agreement", "-needle", "-keep"}) {
    const std::string stem = (folder / "p").string();
    check_refused(command + " --prompt-len 8 --continuation 2 --samples 2 --text " + ids +
                      " --csv " + stem + suffix + ".csv --plot " + stem + ".svg",
                  "points that go to the file of --csv");
  }
  check_refused(command + small + " --plot /nowhere/p.svg", "/nowhere/p");
  check_refused(command + csv + " --needles 3", "--needles: ");
  check_refused(command + small + " --times /no/file.csv", "/no/file.csv");
  check_refused(command + small + " --method specprefill:keep=0.5,chunk=32", "chunk");
  CHECK(folder.num_files() == 1);  // the ids
}

TEST_CASE("validate quality: the base named as its own speculator is the same as none named") {
  const TestFolder folder;
  const std::string base = std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/llama_gqa_llama3_rope";
  const json j = run_json("validate quality --quiet --json --threads 1 " + model + "--text " +
                          write_ids(folder) + " --samples 2 --prompt-len 12 --continuation 4 " +
                          "--method \"specprefill:lookahead=2,reuse=kept;specprefill:lookahead=2,"
                          "reuse=kept,speculator=" +
                          base + "\" --keep 0.5 --csv " + (folder / "q.csv").string());
  REQUIRE(j["rows"].size() == 3);
  CHECK(j["rows"][2]["method"].get<std::string>().find("speculator=" + base) != std::string::npos);
  for (const char* key : {"agreement", "kl_nats", "perplexity"}) {
    CAPTURE(key);
    CHECK(j["rows"][2][key] == j["rows"][1][key]);
  }
}

TEST_CASE("validate quality: a speculator whose words are others") {
  const std::string source(KVCAST_SOURCE_DIR);
  const TestFolder folder;
  for (const char* name : {"base", "same", "other"}) {
    fs::copy(source + "/tests/oracle/llama_mha", folder / name, fs::copy_options::recursive);
  }
  const std::string tokenizers = source + "/tests/text/data/";
  fs::copy(tokenizers + "llama2.json", folder / "base" / "tokenizer.json");
  fs::copy(tokenizers + "llama2.json", folder / "same" / "tokenizer.json");
  fs::copy(tokenizers + "gpt2.json", folder / "other" / "tokenizer.json");
  const std::string csv = (folder / "q.csv").string();
  const std::string command = "validate quality --quiet --json --model " +
                              (folder / "base").string() + " --prompt-len 8 --continuation 2 " +
                              "--samples 2 --text " + write_ids(folder) + " --csv " + csv +
                              " --method specprefill:keep=0.5,lookahead=2,speculator=";
  const auto files = folder.num_files();
  check_refused(command + (folder / "other").string(),
                "a tokenizer that reads the prompt's ids as another text");
  CHECK(folder.num_files() == files);
  CHECK(run_json(command + (folder / "same").string())["rows"].size() == 2);
}

}  // namespace
}  // namespace kvcast::cli
