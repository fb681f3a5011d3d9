// `convert prune`, `convert kvp`, `validate kvp` and the method kvp.
#include <string>

#include <fmt/format.h>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string pair = "--base " + oracle + "openelm --auxiliary " + oracle + "kvp/auxiliary ";

/// Token ids of OpenELM's tiny vocabulary in a file.
std::string write_ids(const TestFolder& folder, int count) {
  json ids = json::array();
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + 11 * i + 3) % 67);
  write(folder / "ids.json", ids.dump());
  return folder.file("ids.json");
}

TEST_CASE("convert prune: --json says which layers are left, and the new checkpoint runs") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const json j =
      run_json("convert prune --quiet --json " + oracle + "openelm " + out + " --keep 0.5");
  check_keys(j, {"model", "output", "parameters_before", "parameters_after", "kv_cache_ratio"});
  CHECK(j["kept_layers"] == json({0, 2}));
  CHECK(j["num_hidden_layers_before"] == 3);
  CHECK(j["kv_cache_ratio"].get<double>() == near(3.0 / 5));  // heads 1, 2, 2 -> 1, 2
  CHECK(run_json("model show --json " + out)["parameters"] == j["parameters_after"]);
  const json run = run_json("run --quiet --json --tokens 1,2,3 --output-len 4 --model " + out);
  CHECK(run["generated_tokens"].size() == 4);
  check_refused("convert prune --quiet " + out + " " + folder.file("again") + " --keep 0",
                "a layer-pruned model");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("convert kvp: maps are fitted, errors reported, and a run takes them") {
  const TestFolder folder;
  const std::string ids = write_ids(folder, 400);
  const std::string out = folder.file("maps");
  const std::string csv = folder.file("errors.csv");
  const json j = run_json("convert kvp --quiet --json " + pair + "--fit " + ids + " " + out +
                          " --window 32 --csv " + csv);
  CHECK(j["layer_map"] == json({0, 0, 1}));
  // 2 heads of 4 -> 1 of 6 and 2 of 6; 1 head of 4 -> 2 of 6.
  CHECK(j["parameters"] == 2 * ((8 + 1) * 6 + (8 + 1) * 12 + (4 + 1) * 12));
  CHECK(j["fitted_tokens"].get<int>() + j["held_out_tokens"].get<int>() == 400);
  CHECK(j["layers"].size() == 3);
  CHECK(j["positions"].size() == 32);
  CHECK(contents(csv).starts_with("axis,index,part,l1,r2\n"));
  const json run =
      run_json("run --quiet --json --count --tokens 1,2,3,4 --output-len 5 --model " + oracle +
               "openelm --method kvp:auxiliary=" + oracle + "kvp/auxiliary,predictor=" + out);
  check_counted(run);
  // 4 + 5 slots of 5 heads of 6, keys and values in fp32.
  CHECK(run["kv_cache_bytes"] == 2 * (4 + 5) * 5 * 6 * 4);

  const json v = run_json("validate kvp --quiet --json " + pair + "--predictor " + out +
                          " --text " + ids + " --window 32");
  CHECK(v["tokens"] == 399);
  CHECK(v["total"].get<double>() ==
        near(v["base"]["cross_entropy"].get<double>() + v["base"]["z_loss"].get<double>() +
             v["auxiliary"]["cross_entropy"].get<double>() +
             v["auxiliary"]["z_loss"].get<double>() + v["consistency"].get<double>()));
}

// 9 tokens to fit 9 unknowns of each output, and 9 others, none of them seen, to predict.
TEST_CASE("convert kvp: maps that predict worse than a mean are told in one line") {
  const TestFolder folder;
  write(folder / "ids.json", "[0,1,2,3,4,5,6,7,8,40,41,42,43,44,45,46,47,48]");
  const ProgramResult r = run_well("convert kvp --json " + pair + folder.file("maps") + " --fit " +
                                   folder.file("ids.json"));
  std::size_t misfits = 0;
  const json j = json::parse(r.output);
  for (const json& layer : j["layers"]) {
    for (const char* part : {"key_r2", "value_r2"}) {
      if (layer[part].get<double>() < 0) ++misfits;
    }
  }
  REQUIRE(misfits > 0);
  check_contains(r.errors, {"warning: " + std::to_string(misfits) + " of 6 maps predict"});
  CHECK(r.errors.find("warning:") == r.errors.rfind("warning:"));
}

TEST_CASE("convert kvp: a wrong text names no flag that was not given") {
  const TestFolder folder;
  write(folder / "text", "abc");
  for (const char* name : {"none", "text"}) {
    const ProgramResult r = run_program("convert kvp --quiet " + pair + "--fit " +
                                        folder.file(name) + " " + folder.file("maps"));
    CAPTURE(r.errors);
    CHECK(contains(r.errors, "--fit: "));
    CHECK(!contains(r.errors, "--prompt-file"));
    CHECK(!contains(r.errors, "--tokens"));
  }
}

TEST_CASE("convert kvp: plots of errors over layers and positions beside their points") {
  const TestFolder folder;
  const json j =
      run_json("convert kvp --quiet --json " + pair + "--fit " + write_ids(folder, 400) + " " +
               folder.file("maps") + " --window 32 --plot " + folder.file("layers.svg") +
               " --plot-positions " + folder.file("positions.png"));
  const auto check = [&](const std::string& stem, const char* picture, std::size_t size,
                         std::size_t row, const char* column, const json& expected) {
    CAPTURE(stem);
    CHECK(fs::file_size(folder.file(stem + picture)) > 0);
    const CsvTable points = CsvTable::read(folder.file(stem + ".csv"));
    REQUIRE(points.size() == size);
    CHECK(points[row].number(column) == expected);
  };
  // Keys and values of 3 layers, of 32 positions. The paper's figures 6 and 7 have R2 beside L1.
  check("layers", ".svg", 2 * 3, 0, "l1", j["layers"][0]["key_l1"]);
  check("positions", ".png", 2 * 32, 63, "l1", j["positions"][31]["value_l1"]);
  check("layers-r2", ".svg", 2 * 3, 4, "r2", j["layers"][1]["value_r2"]);
  check("positions-r2", ".png", 2 * 32, 9, "r2", j["positions"][9]["key_r2"]);
}

TEST_CASE("validate kvp: an auxiliary in a folder named lp-0.50 is the model in that folder") {
  const TestFolder folder;
  fs::copy(oracle + "kvp/auxiliary", folder / "lp-0.50");
  const std::string rest = " --predictor " + oracle + "kvp/predictor --text " +
                           write_ids(folder, 60) + " --base " + oracle + "openelm";
  const std::string validate = "validate kvp --quiet --json --auxiliary ";
  CHECK(run_json(validate + "lp-0.50" + rest, "cd " + folder.path().string() + ";") ==
        run_json(validate + oracle + "kvp/auxiliary" + rest));
}

// Tokenizers that differ are refused: refused_requests.txt.
TEST_CASE("convert kvp: two models of one tokenizer take a text, and none") {
  const TestFolder folder;
  const fs::path base = folder / "base";
  fs::copy(oracle + "openelm", base);
  const char* bytes =
      R"("type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true)";
  write(base / "tokenizer.json",
        fmt::format(R"({{"version": "1.0", "added_tokens": [], "normalizer": null,
            "post_processor": null, "pre_tokenizer": {{{}}}, "decoder": {{"type": "ByteLevel"}},
            "model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1, "c": 2, "d": 3}}, "merges": []}}}})",
                    bytes));
  write(folder / "text", "abcdabcdabcdabcdabcdabcdabcdabcd");
  const std::string convert = "convert kvp --quiet --json --base " + base.string() +
                              " --auxiliary " + base.string() + " " + folder.file("maps");
  run_json(convert + "1 --identity");
  CHECK(run_json(convert + "2 --fit " + folder.file("text"))["fitted_tokens"] == 16);
}

TEST_CASE("estimate: kvp is costed with catalog names and with pruned layers") {
  const std::string command =
      "estimate --quiet --json --model openelm-1.1b --hardware m2-pro-cpu --dtype fp32 "
      "--prompt-len 513 --output-len 2 --method ";
  const json plain = run_json(command + "plain");
  const json kvp = run_json(command + "kvp:auxiliary=openelm-450m");
  const json pruned = run_json(command + "kvp:auxiliary=lp-0.50");
  CHECK(kvp["kv_cache_bytes"] == plain["kv_cache_bytes"]);
  CHECK(kvp["decode_flops_per_token"] == plain["decode_flops_per_token"]);
  // 2 FLOPs for each weight and token (reference: E10's counts; embeddings of 32000 · 2048 and
  // 32000 · 1536 are looked up, and the base's is its head too), and attention on top.
  const double auxiliary = 457179136.0 - 32000.0 * 1536, base = 1079891456.0;
  const double least = 2 * 512 * (auxiliary + 6206592) + 2 * base;
  CHECK(kvp["prefill_flops"].get<double>() > least);
  CHECK(kvp["prefill_flops"].get<double>() < 1.05 * least);
  // The auxiliary's and the predictor's weights lie beside the base's; of the auxiliary the final
  // norm (1536) is not needed.
  CHECK(kvp["weight_bytes"].get<std::uint64_t>() - plain["weight_bytes"].get<std::uint64_t>() ==
        4 * (457179136u - 1536 + 6206592));
  CHECK(pruned["weight_bytes"].get<std::uint64_t>() - plain["weight_bytes"].get<std::uint64_t>() ==
        4 * (559476480u - 2048 + 8672384));
  CHECK(kvp["ttft_speedup"].get<double>() > pruned["ttft_speedup"].get<double>());
}

// Rows that no token of theirs has: 151,936 and 152,064 of one tokenizer.
TEST_CASE("estimate: kvp and specprefill take a helper of a vocabulary padded otherwise") {
  const std::string command =
      "estimate --quiet --json --model qwen2.5-7b --hardware h200 --prompt-len 4k --method ";
  for (const std::string method :
       {"kvp:auxiliary=qwen2.5-0.5b", "specprefill:speculator=qwen2.5-0.5b,keep=0.3"}) {
    CHECK(run_json(command + method)["ttft_speedup"].get<double>() > 1);
  }
}

}  // namespace
}  // namespace kvcast::cli
