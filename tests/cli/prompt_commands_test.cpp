// `run` and `choose keep-rate` with the prompt methods.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string oracle = std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/";
const std::string tokenizers = std::string(KVCAST_SOURCE_DIR) + "/tests/text/data/";

TEST_CASE("run specprefill: the dumped importance says which tokens were kept") {
  const TestFolder folder;
  const std::string csv = (folder / "importance.csv").string();
  const json j = run_json("run --json --count --model " + oracle +
                          "llama_mha --prompt-len 21 --output-len 4 --method "
                          "specprefill:keep=0.3,lookahead=3 --dump-importance " +
                          csv);
  CHECK(j["kept_tokens"] == 7);
  CHECK(j["counted_flops"] == j["analytic_flops"]);
  CHECK(j["counted_bytes"] == j["analytic_bytes"]);
  const CsvTable table = CsvTable::read(csv);
  REQUIRE(table.size() == 21);
  double least_kept = 2;
  double most_dropped = 0;
  std::uint64_t kept = 0;
  for (const CsvRow& row : table.rows()) {
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
  const TestFolder folder;
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

  // Every option of the method that costs something.
  const auto same = [&](const std::string& flags, const std::string& options, int kept) {
    CAPTURE(options);
    const std::string model = "--json --model llama-3.1-70b --hardware h200 --prompt-len 16k ";
    const json chosen = run_json("choose keep-rate --keep 0.3 " + model + flags)["choice"];
    const json costed =
        run_json("estimate --output-len 1 " + model + "--method specprefill:keep=0.3," + options);
    CHECK(costed["ttft_s"] == chosen["ttft_s"]);
    CHECK(chosen["kept_tokens"] == kept);
    return chosen["ttft_s"].get<double>();
  };
  const std::string small = "--speculator llama-3.1-8b --lookahead 4 --chunk 32";
  const std::string names = "speculator=llama-3.1-8b,lookahead=4,chunk=32";
  same(small + " --pool 13", names + ",pool=13", 32 * 154);  // ceil(0.3 * 512 chunks)
  // ceil(0.3 * 16384), although the base reads one token of a prompt that the cache has.
  const int kept = 4916;
  CHECK(same("--reuse kept", "reuse=kept", kept) < same("", "lookahead=8", kept));
  check_refused(choose + "--keep 0.5 --pool 4", "an odd number");
  check_refused(choose + "--keep 0.5 --pool 32771", "at most twice the prompt's 16384");
  check_refused(choose + "--keep 0.5 --reuse kept", "the base is its own");
  check_refused(choose + "--keep 0.5 --reuse all", "unknown option reuse 'all'");

  const json none = run_json(choose + "--target-speedup 1000");
  CHECK(none["choice"].is_null());
  CHECK(none["reason"].get<std::string>().find("no keep rate reaches") != std::string::npos);
  check_refused(choose, "--target-speedup X, or --keep F");
  check_refused(choose + "--keep 0.5 --target-speedup 2", "both");
  check_refused(choose + "--keep 0", "a fraction above 0");
  check_refused(choose + "--target-speedup 0", "a finite number above 0");
  check_refused(choose + "--target-speedup inf", "a finite number above 0");
}

TEST_CASE("specprefill: the base named as its own speculator is the same as none named") {
  const TestFolder folder;
  const std::string point = " --model pythia-160m --hardware h200 --prompt-len 2k --output-len 8 ";
  const std::string options = "keep=0.3,lookahead=2";
  const std::string named = "specprefill:speculator=pythia-160m," + options;
  for (const std::string reuse : {"", ",reuse=kept"}) {
    CAPTURE(reuse);
    json own = run_json("estimate --json" + point + "--method specprefill:" + options + reuse);
    json same = run_json("estimate --json" + point + "--method " + named + reuse);
    CHECK(same["method"] == named + reuse);
    own.erase("method");
    same.erase("method");
    CHECK(same == own);

    const std::string csv = (folder.path() / (reuse.empty() ? "own.csv" : "reuse.csv")).string();
    REQUIRE(run_program("sweep --quiet" + point + "--method '" + named + reuse + "' --csv " + csv)
                .status == 0);
    const CsvTable table = CsvTable::read(csv);
    REQUIRE(table.size() == 1);
    CHECK(table[0].text("method") == named + reuse);
    CHECK(table[0].number("weight_bytes") == own["weight_bytes"]);
    CHECK(table[0].number("ttft_s") == near(own["ttft_s"].get<double>()).epsilon(1e-9));

    const std::string run =
        "run --quiet --json --model " + oracle +
        "llama_mha --prompt-len 21 --output-len 4 --method specprefill:" + options + reuse;
    const json alone = run_json(run);
    const json with_name = run_json(run + ",speculator=" + oracle + "../oracle/llama_mha/");
    for (const char* key : {"weight_bytes", "generated_tokens", "kept_tokens", "kv_cache_bytes",
                            "analytic_flops", "analytic_bytes"}) {
      CAPTURE(key);
      CHECK(with_name[key] == alone[key]);
    }
    CHECK(with_name["method"] ==
          alone["method"].get<std::string>() + ",speculator=" + oracle + "../oracle/llama_mha/");
    // Random weights have seeds of their own, but the base's name stands for the base's.
    const std::string random = "run --quiet --json --random-weights 7 --model " + oracle +
                               "llama_mha/config.json --prompt-len 21 --output-len 4 --method "
                               "specprefill:" +
                               options + reuse;
    CHECK(run_json(random + ",speculator=" + oracle + "llama_mha/config.json")["kept_tokens"] ==
          run_json(random)["kept_tokens"]);
  }
  const std::string choose =
      "choose keep-rate --json --model pythia-160m --hardware h200 --prompt-len 2k --keep 0.3 "
      "--reuse kept";
  CHECK(run_json(choose + " --speculator pythia-160m")["rows"] == run_json(choose)["rows"]);
  // The same name under other settings is another model.
  const std::string fewer = " --set num_hidden_layers=6";
  check_refused("estimate" + point + fewer + " --method " + named + ",reuse=kept",
                "got the speculator pythia-160m");
}

TEST_CASE("run specprefill: the importance is drawn over the prompt, with what was kept") {
  const TestFolder folder;
  run_json("run --json --model " + oracle +
           "llama_mha --prompt-len 21 --output-len 2 --method specprefill:keep=0.3 "
           "--plot-importance " +
           (folder / "importance.svg").string());
  CHECK(fs::file_size(folder / "importance.svg") > 0);
  const CsvTable table = CsvTable::read(folder / "importance.csv");
  CHECK(table.size() == 21 + 7);  // all tokens, and ⌈0.3·21⌉ kept ones
}

TEST_CASE("run: files of importance that cannot be written are seen before the run") {
  const TestFolder folder;
  const std::string run =
      "run --quiet --model " + oracle + "llama_mha --tokens 1,2,3,4,5,6 --output-len 2 --method ";
  const std::string weighs = run + "specprefill:keep=0.5,lookahead=2 ";
  const auto files = folder.num_files();
  check_refused(weighs + "--plot-importance " + (folder / "a.txt").string(), "a.txt");
  check_refused(weighs + "--dump-importance " + (folder / "none" / "a.csv").string(), "a.csv");
  check_refused(weighs + "--dump-importance " + (folder / "a.csv").string() +
                    " --plot-importance " + (folder / "a.svg").string(),
                "another stem");  // the picture's points go to a.csv
  const std::string plot = " --plot-importance " + (folder / "a.svg").string();
  check_refused(run + "random-prune:keep=0.5" + plot, "tokens drawn by lot");
  check_refused(run + "lazyllm:begin=0.8,end=0.4" + plot,
                "chooses no tokens before the base model reads them");
  CHECK(folder.num_files() == files);
}

TEST_CASE(
    "run specprefill: a batch lists its kept tokens, and has no profile where it runs apart") {
  const std::string run =
      "run --json --quiet --model " + oracle + "llama_mha --prompt-len 21 --output-len 2 --method ";
  CHECK(run_json(run + "random-prune:keep=0.5 --batch 2")["kept_tokens"] == json({11, 11}));
  const std::string chunks = run + "specprefill:keep=0.5,lookahead=2,chunk=8 ";
  const json kept = run_json(chunks + "--batch 2")["kept_tokens"];
  REQUIRE(kept.size() == 2);
  for (const json& n : kept) CHECK((n == 16 || n == 13));  // two chunks of 8, 8 and 5
  check_refused(chunks + "--batch 2 --profile --hardware m2-pro-cpu", "--profile");
  CHECK(run_json(chunks + "--profile --hardware m2-pro-cpu")["profile"].size() > 0);
}

TEST_CASE("run: prompts of different lengths run one by one, and the answer says so") {
  const TestFolder folder;
  const std::string csv = (folder / "importance.csv").string();
  const std::string run = "run --quiet --json --model " + oracle +
                          "llama_mha --output-len 4 --method specprefill:keep=0.5,lookahead=2 ";
  const json both = run_json(run + "--tokens '5,9,2,7,1,8;3,4,3' --dump-importance " + csv);
  CHECK(both["one_by_one"] == true);
  CHECK(both["prompt_len"] == json({6, 3}));
  CHECK(both["kept_tokens"] == json({3, 2}));
  const json first = run_json(run + "--tokens 5,9,2,7,1,8");
  const json second = run_json(run + "--tokens 3,4,3");
  CHECK_FALSE(first.contains("one_by_one"));
  CHECK(both["generated_tokens"] == json({first["generated_tokens"], second["generated_tokens"]}));
  CHECK(both["analytic_flops"].get<std::uint64_t>() ==
        first["analytic_flops"].get<std::uint64_t>() +
            second["analytic_flops"].get<std::uint64_t>());
  CHECK(CsvTable::read(csv).size() == 6 + 3);
  const ProgramResult text = run_program("run --model " + oracle +
                                         "llama_mha --output-len 4 --tokens '5,9,2,7,1,8;3,4,3'");
  CHECK(text.errors.find("prompts of 3 to 6 tokens") != std::string::npos);
  CHECK(text.errors.find("2 sequences that ran one by one") != std::string::npos);
}

TEST_CASE("run: of prompts of different lengths lazyllm's revived share is the first one's") {
  const std::string run = "run --quiet --json --model " + oracle +
                          "llama_mha --output-len 4 --method lazyllm:begin=0.8,end=0.3,from=0.1 ";
  const json first = run_json(run + "--tokens 1,2,3,4,5,6,7,8");
  CHECK(first["revived_share"]["first_step"] > 0);
  CHECK(first["revived_share"]["later_steps"].is_number());
  const json both = run_json(run + "--tokens '1,2,3,4,5,6,7,8;1,2,3,4,5,6'");
  CHECK(both["revived_share"] == first["revived_share"]);
  CHECK(both["revived_tokens"] == first["revived_tokens"]);
}

TEST_CASE("estimate and choose keep-rate: chunks or pools beyond the prompt are refused") {
  const std::string model = " --json --quiet --model llama-3.1-8b --hardware h200 --prompt-len 64 ";
  const std::string estimate = "estimate" + model + "--method specprefill:keep=0.5,";
  check_refused(estimate + "chunk=65", "chunks of 65 tokens");
  check_refused(estimate + "pool=131", "at most twice the prompt's 64");
  CHECK(run_json(estimate + "chunk=64,pool=127")["fits"] == true);
  check_refused("choose keep-rate" + model + "--keep 0.5 --chunk 65", "chunks of 65 tokens");
  CHECK(run_json("choose keep-rate" + model + "--keep 0.5 --chunk 16")["choice"]["kept_tokens"] ==
        32);
}

TEST_CASE("choose keep-rate: the CSV says which row is chosen, and stderr why none is") {
  const TestFolder folder;
  const std::string file = (folder / "rates.csv").string();
  const std::string choose =
      "choose keep-rate --model llama-3.1-70b --speculator llama-3.1-8b --hardware h200 "
      "--prompt-len 16k --lookahead 1 --csv ";
  REQUIRE(run_program(choose + file + " --target-speedup 2").status == 0);
  const CsvTable table = CsvTable::read(file);
  REQUIRE(table.size() == 6);  // the answer and the five usual rates
  CHECK(table.rows()[0].text("chosen") == "true");
  for (std::size_t i = 1; i < 6; ++i) CHECK(table.rows()[i].text("chosen") == "false");
  const ProgramResult none = run_program(choose + "- --target-speedup 1000");
  CHECK(none.status == 0);
  CHECK(none.output.find("true,0") == std::string::npos);
  CHECK(none.output.starts_with("chosen,keep,"));
  CHECK(none.errors.find("no keep rate reaches a speed-up of 1000") != std::string::npos);
  check_refused(choose + (folder / "none" / "rates.csv").string() + " --keep 0.5", "rates.csv");
}

}  // namespace
}  // namespace kvcast::cli
