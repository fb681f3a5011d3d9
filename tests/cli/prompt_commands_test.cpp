// `run` and `choose keep-rate` with the prompt methods.
#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

TEST_CASE("run specprefill: the dumped importance says which tokens were kept") {
  const TestFolder folder;
  const std::string csv = folder.file("importance.csv");
  const json j = run_json("run --json --count --model " + oracle +
                          "llama_mha --prompt-len 21 --output-len 4 --method "
                          "specprefill:keep=0.3,lookahead=3 --dump-importance " +
                          csv);
  CHECK(j["kept_tokens"] == 7);
  check_counted(j);
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

// One with another tokenizer is refused: refused_requests.txt.
TEST_CASE("run, validate quality: a speculator of another size, and a copy with the same words") {
  const TestFolder folder;
  const std::string run = "run --json --tokens 40,41,42,43,44,45 --output-len 3 --model ";
  const std::string method = " --method specprefill:keep=0.5,lookahead=2,speculator=";
  const json other =
      run_json(run + oracle + "llama_mha" + method + oracle + "llama_gqa_llama3_rope");
  CHECK(other["kept_tokens"] == 3);

  for (const char* name : {"base", "same"}) {
    fs::copy(oracle + "llama_mha", folder / name, fs::copy_options::recursive);
    fs::copy(source_folder / "tests/text/data/llama2.json", folder / name / "tokenizer.json");
  }
  const std::string same = folder.file("base") + method + folder.file("same");
  CHECK(run_json(run + same)["kept_tokens"] == 3);
  write(folder / "ids.json", "[2,7,18,28,38,48,58,7,17,27,37,47,57,6,16,26,36,46,56,5,15,25,35]");
  CHECK(run_json("validate quality --quiet --json --prompt-len 8 --continuation 2 --samples 2 "
                 "--text " +
                 folder.file("ids.json") + " --csv " + folder.file("q.csv") + " --model " +
                 same)["rows"]
            .size() == 2);
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
  check_equal(estimate, choice, {"ttft_speedup", "ttft_s"});

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

  const json none = run_json(choose + "--target-speedup 1000");
  CHECK(none["choice"].is_null());
  CHECK(contains(none["reason"], "no keep rate reaches"));
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

    const std::string csv = folder.file(reuse.empty() ? "own.csv" : "reuse.csv");
    run_well("sweep --quiet" + point + "--method '" + named + reuse + "' --csv " + csv);
    const CsvTable table = CsvTable::read(csv);
    REQUIRE(table.size() == 1);
    CHECK(table[0].text("method") == named + reuse);
    CHECK(table[0].number("weight_bytes") == own["weight_bytes"]);
    check_row(table[0], own, {"ttft_s"}, 1e-9);

    const std::string run =
        "run --quiet --json --model " + oracle +
        "llama_mha --prompt-len 21 --output-len 4 --method specprefill:" + options + reuse;
    const json alone = run_json(run);
    const json with_name = run_json(run + ",speculator=" + oracle + "../oracle/llama_mha/");
    check_equal(with_name, alone,
                {"weight_bytes", "generated_tokens", "kept_tokens", "kv_cache_bytes",
                 "analytic_flops", "analytic_bytes"});
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
}

TEST_CASE("run specprefill: the importance is drawn over the prompt, with what was kept") {
  const TestFolder folder;
  run_json("run --json --model " + oracle +
           "llama_mha --prompt-len 21 --output-len 2 --method specprefill:keep=0.3 "
           "--plot-importance " +
           folder.file("importance.svg"));
  CHECK(fs::file_size(folder / "importance.svg") > 0);
  const CsvTable table = CsvTable::read(folder / "importance.csv");
  CHECK(table.size() == 21 + 7);  // all tokens, and ⌈0.3·21⌉ kept ones
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
  CHECK(run_json(chunks + "--profile --hardware m2-pro-cpu")["profile"].size() > 0);
}

TEST_CASE("run: prompts of different lengths run one by one, and the answer says so") {
  const TestFolder folder;
  const std::string csv = folder.file("importance.csv");
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
  check_contains(
      run_well("run --model " + oracle + "llama_mha --output-len 4 --tokens '5,9,2,7,1,8;3,4,3'")
          .errors,
      {"prompts of 3 to 6 tokens", "2 sequences that ran one by one"});
}

TEST_CASE("run: of prompts of different lengths lazyllm's revived share is the first one's") {
  const std::string run = "run --quiet --json --model " + oracle +
                          "llama_mha --output-len 4 --method lazyllm:begin=0.8,end=0.3,from=0.1 ";
  const json first = run_json(run + "--tokens 1,2,3,4,5,6,7,8");
  CHECK(first["revived_share"]["first_step"] > 0);
  CHECK(first["revived_share"]["later_steps"].is_number());
  const json both = run_json(run + "--tokens '1,2,3,4,5,6,7,8;1,2,3,4,5,6'");
  check_equal(both, first, {"revived_share", "revived_tokens"});
}

TEST_CASE("estimate: lazyllm takes tokens back in mixtures of experts too") {
  const json j = run_json(
      "estimate --quiet --json --model mixtral-8x7b --hardware h200 --method "
      "lazyllm:begin=0.9,end=0.4,revive=0.3");
  CHECK(j["tpot_s"] > 0);
}

TEST_CASE("estimate and choose keep-rate: chunks and pools may be as long as the prompt") {
  const std::string model = " --json --quiet --model llama-3.1-8b --hardware h200 --prompt-len 64 ";
  const std::string estimate = "estimate" + model + "--method specprefill:keep=0.5,";
  CHECK(run_json(estimate + "chunk=64,pool=127")["fits"] == true);
  CHECK(run_json("choose keep-rate" + model + "--keep 0.5 --chunk 16")["choice"]["kept_tokens"] ==
        32);
}

TEST_CASE("choose keep-rate: the CSV says which row is chosen, and stderr why none is") {
  const TestFolder folder;
  const std::string file = folder.file("rates.csv");
  const std::string choose =
      "choose keep-rate --model llama-3.1-70b --speculator llama-3.1-8b --hardware h200 "
      "--prompt-len 16k --lookahead 1 --csv ";
  run_well(choose + file + " --target-speedup 2");
  const CsvTable table = CsvTable::read(file);
  REQUIRE(table.size() == 6);  // the answer and the five usual rates
  CHECK(table.rows()[0].text("chosen") == "true");
  for (std::size_t i = 1; i < 6; ++i) CHECK(table.rows()[i].text("chosen") == "false");
  const ProgramResult none = run_well(choose + "- --target-speedup 1000");
  CHECK_FALSE(contains(none.output, "true,0"));
  CHECK(none.output.starts_with("chosen,keep,"));
  CHECK(contains(none.errors, "no keep rate reaches a speed-up of 1000"));
}

}  // namespace
}  // namespace kvcast::cli
