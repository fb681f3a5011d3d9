// `run` and `choose keep-rate` with the prompt methods.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "reports/csv_table.h"
#include "tests/cli/program.h"
#include "tests/reports/test_folder.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string oracle = std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/";
const std::string tokenizers = std::string(KVCAST_SOURCE_DIR) + "/tests/text/data/";

TEST_CASE("run specprefill: the dumped importance says which tokens were kept") {
  const reports::TestFolder folder;
  const std::string csv = (folder / "importance.csv").string();
  const json j = run_json("run --json --count --model " + oracle +
                          "llama_mha --prompt-len 21 --output-len 4 --method "
                          "specprefill:keep=0.3,lookahead=3 --dump-importance " +
                          csv);
  CHECK(j["kept_tokens"] == 7);
  CHECK(j["counted_flops"] == j["analytic_flops"]);
  CHECK(j["counted_bytes"] == j["analytic_bytes"]);
  const reports::CsvTable table = reports::CsvTable::read(csv);
  REQUIRE(table.size() == 21);
  double least_kept = 2;
  double most_dropped = 0;
  std::uint64_t kept = 0;
  for (const reports::CsvRow& row : table.rows()) {
    const double importance = row.number("importance");
    if (row.whole("kept") == 1) {
      least_kept = std::min(least_kept, importance);
      ++kept;
    } else {
      most_dropped = std::max(most_dropped, importance);
    }
  }
  CHECK(kept == 7);
  CHECK(least_kept >= most_dropped);
}

TEST_CASE("run specprefill: a speculator of another size, and one whose words are others") {
  const reports::TestFolder folder;
  const std::string run = "run --json --tokens 40,41,42,43,44,45 --output-len 3 --model ";
  const std::string method = " --method specprefill:keep=0.5,lookahead=2,speculator=";
  const json other =
      run_json(run + oracle + "llama_mha" + method + oracle + "llama_gqa_llama3_rope");
  CHECK(other["kept_tokens"] == 3);

  for (const char* name : {"base", "same", "other"}) {
    fs::copy(oracle + "llama_mha", folder / name, fs::copy_options::recursive);
  }
  fs::copy(tokenizers + "llama2.json", folder / "base" / "tokenizer.json");
  fs::copy(tokenizers + "llama2.json", folder / "same" / "tokenizer.json");
  fs::copy(tokenizers + "gpt2.json", folder / "other" / "tokenizer.json");
  const std::string base = (folder / "base").string();
  CHECK(run_json(run + base + method + (folder / "same").string())["kept_tokens"] == 3);
  check_refused(run + base + method + (folder / "other").string(),
                "a tokenizer that reads the prompt's ids as another text");
}

TEST_CASE("choose keep-rate: a target gives a share, and the share gives the speed-up") {
  const std::string choose =
      "choose keep-rate --json --model llama-3.1-70b --speculator llama-3.1-8b --hardware h200 "
      "--prompt-len 16k --lookahead 1 ";
  const json by_target = run_json(choose + "--target-speedup 2");
  const json& choice = by_target["choice"];
  check_keys(choice, {"keep", "kept_tokens", "ttft_s", "ttft_speedup", "overhead_s", "fits"});
  CHECK(choice["ttft_speedup"].get<double>() >= 2);
  const json by_keep = run_json(choose + "--keep " + choice["keep"].dump());
  CHECK(by_keep["choice"] == choice);
  const json estimate = run_json(
      "estimate --json --model llama-3.1-70b --hardware h200 --prompt-len 16k --output-len 1 "
      "--method specprefill:speculator=llama-3.1-8b,lookahead=1,keep=" +
      choice["keep"].dump());
  CHECK(estimate["ttft_speedup"] == choice["ttft_speedup"]);
  CHECK(estimate["ttft_s"] == choice["ttft_s"]);

  const json none = run_json(choose + "--target-speedup 1000");
  CHECK(none["choice"].is_null());
  CHECK(none["reason"].get<std::string>().find("no keep rate reaches") != std::string::npos);
  check_refused(choose, "--target-speedup X, or --keep F");
  check_refused(choose + "--keep 0.5 --target-speedup 2", "both");
  check_refused(choose + "--keep 0", "a fraction above 0");
  check_refused(choose + "--target-speedup 0", "a number above 0");
}

}  // namespace
}  // namespace kvcast::cli
