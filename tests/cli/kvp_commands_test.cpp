// `convert prune`, `convert kvp`, `validate kvp` and the method kvp.
#include <filesystem>
#include <fstream>
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
const std::string pair = "--base " + oracle + "openelm --auxiliary " + oracle + "kvp/auxiliary ";

/// Token ids of OpenELM's tiny vocabulary in a file.
std::string write_ids(const TestFolder& folder, int count) {
  json ids = json::array();
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + 11 * i + 3) % 67);
  const fs::path file = folder / "ids.json";
  std::ofstream(file) << ids;
  return file.string();
}

TEST_CASE("convert prune: --json says which layers are left, and the new checkpoint runs") {
  const TestFolder folder;
  const std::string out = (folder / "out").string();
  const json j =
      run_json("convert prune --quiet --json " + oracle + "openelm " + out + " --keep 0.5");
  check_keys(j, {"model", "output", "parameters_before", "parameters_after", "kv_cache_ratio"});
  CHECK(j["kept_layers"] == json({0, 2}));
  CHECK(j["num_hidden_layers_before"] == 3);
  CHECK(j["kv_cache_ratio"].get<double>() == near(3.0 / 5));  // heads 1, 2, 2 -> 1, 2
  CHECK(run_json("model show --json " + out)["parameters"] == j["parameters_after"]);
  const json run = run_json("run --quiet --json --tokens 1,2,3 --output-len 4 --model " + out);
  CHECK(run["generated_tokens"].size() == 4);
  const std::string again = (folder / "again").string();
  check_refused("convert prune --quiet " + out + " " + again + " --keep 0", "a layer-pruned model");
  check_refused("convert prune --quiet " + oracle + "openelm " + again + " --keep 0.6",
                "--keep: layer pruning: got keep fraction 0.6");
  check_refused("convert prune --quiet " + oracle + "openelm " + again + " --keep 0,5",
                "got layer 5, expected indices from 0 to 2");
  CHECK_FALSE(fs::exists(again));
}

TEST_CASE("convert kvp: maps are fitted, errors reported, and a run takes them") {
  const TestFolder folder;
  const std::string ids = write_ids(folder, 400);
  const std::string out = (folder / "maps").string();
  const std::string csv = (folder / "errors.csv").string();
  const json j = run_json("convert kvp --quiet --json " + pair + "--fit " + ids + " " + out +
                          " --window 32 --csv " + csv);
  CHECK(j["layer_map"] == json({0, 0, 1}));
  // 2 heads of 4 -> 1 of 6 and 2 of 6; 1 head of 4 -> 2 of 6.
  CHECK(j["parameters"] == 2 * ((8 + 1) * 6 + (8 + 1) * 12 + (4 + 1) * 12));
  CHECK(j["fitted_tokens"].get<int>() + j["held_out_tokens"].get<int>() == 400);
  CHECK(j["layers"].size() == 3);
  CHECK(j["positions"].size() == 32);
  std::ifstream lines(csv);
  std::string header;
  std::getline(lines, header);
  CHECK(header == "axis,index,part,l1,r2");
  const json run =
      run_json("run --quiet --json --count --tokens 1,2,3,4 --output-len 5 --model " + oracle +
               "openelm --method kvp:auxiliary=" + oracle + "kvp/auxiliary,predictor=" + out);
  CHECK(run["counted_flops"] == run["analytic_flops"]);
  CHECK(run["counted_bytes"] == run["analytic_bytes"]);
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

TEST_CASE("convert kvp: bad input is refused in one line and nothing is written") {
  const TestFolder folder;
  const std::string out = (folder / "maps").string();
  const std::string command = "convert kvp --quiet " + pair + out + " ";
  check_refused(command, "got no text, expected --fit TEXT, or --identity");
  check_refused(command + "--identity --fit x", "--identity beside others");
  check_refused(command + "--fit " + (folder / "none").string(), "--fit: ");
  check_refused(command + "--fit " + write_ids(folder, 12), "got 12 tokens, expected at least 16");
  // Half of them; 2 heads of 4 inputs and a bias.
  check_refused(command + "--fit " + write_ids(folder, 16), "got 8 tokens to fit");
  check_refused(command + "--fit " + write_ids(folder, 16), "expected at least 9");
  check_refused(command + "--identity",
                "got 6 key features in layer 0 of openelm and 8 in layer 0");
  check_refused(command + "--identity --map paper", "--map: layer map paper");
  std::ofstream(folder / "map") << "0 1 0";
  check_refused(command + "--identity --map " + (folder / "map").string(),
                "indices that do not descend");
  std::ofstream(folder / "map") << "0 1";
  check_refused(command + "--identity --map " + (folder / "map").string(),
                "got 2 indices, expected 3");
  check_refused(command + "--ridge -1 --fit " + write_ids(folder, 200), "--ridge: got -1");
  check_refused(command + "--ridge 1e308 --fit " + write_ids(folder, 200),
                "a penalty beyond all numbers");
  // Names no flag that was not given.
  std::ofstream(folder / "text") << "abc";
  for (const char* name : {"none", "text"}) {
    const ProgramResult r = run_program(command + "--fit " + (folder / name).string());
    CAPTURE(r.errors);
    CHECK(r.errors.find("--fit: text") != std::string::npos);
    CHECK(r.errors.find("--prompt-file") == std::string::npos);
    CHECK(r.errors.find("--tokens") == std::string::npos);
  }
  CHECK_FALSE(fs::exists(out));
}

// 9 tokens to fit 9 unknowns of each output, and 9 others, none of them seen, to predict.
TEST_CASE("convert kvp: maps that predict worse than a mean are told in one line") {
  const TestFolder folder;
  const fs::path ids = folder / "ids.json";
  std::ofstream(ids) << "[0,1,2,3,4,5,6,7,8,40,41,42,43,44,45,46,47,48]";
  const ProgramResult r = run_program("convert kvp --json " + pair + (folder / "maps").string() +
                                      " --fit " + ids.string());
  REQUIRE(r.status == 0);
  std::size_t misfits = 0;
  const json j = json::parse(r.output);
  for (const json& layer : j["layers"]) {
    for (const char* part : {"key_r2", "value_r2"}) {
      if (layer[part].get<double>() < 0) ++misfits;
    }
  }
  REQUIRE(misfits > 0);
  const std::string said = "warning: " + std::to_string(misfits) + " of 6 maps predict";
  const std::size_t at = r.errors.find(said);
  CAPTURE(r.errors);
  REQUIRE(at != std::string::npos);
  CHECK(r.errors.find("warning:", at + 1) == std::string::npos);
}

TEST_CASE("convert kvp: plots of errors over layers and positions beside their points") {
  const TestFolder folder;
  const std::string layers = (folder / "layers.svg").string();
  const std::string positions = (folder / "positions.png").string();
  const json j = run_json("convert kvp --quiet --json " + pair + "--fit " + write_ids(folder, 400) +
                          " " + (folder / "maps").string() + " --window 32 --plot " + layers +
                          " --plot-positions " + positions);
  CHECK(fs::file_size(layers) > 0);
  CHECK(fs::file_size(positions) > 0);
  const CsvTable by_layer = CsvTable::read(folder / "layers.csv");
  REQUIRE(by_layer.size() == 2 * 3);  // keys and values of 3 layers
  CHECK(by_layer.rows()[0].number("l1") == j["layers"][0]["key_l1"].get<double>());
  const CsvTable by_position = CsvTable::read(folder / "positions.csv");
  REQUIRE(by_position.size() == 2 * 32);
  CHECK(by_position.rows()[63].number("l1") == j["positions"][31]["value_l1"].get<double>());

  // The paper's figures 6 and 7 have R2 beside L1.
  CHECK(fs::file_size(folder / "layers-r2.svg") > 0);
  CHECK(fs::file_size(folder / "positions-r2.png") > 0);
  const CsvTable layers_r2 = CsvTable::read(folder / "layers-r2.csv");
  REQUIRE(layers_r2.size() == 2 * 3);
  CHECK(layers_r2.rows()[4].number("r2") == j["layers"][1]["value_r2"].get<double>());
  const CsvTable positions_r2 = CsvTable::read(folder / "positions-r2.csv");
  REQUIRE(positions_r2.size() == 2 * 32);
  CHECK(positions_r2.rows()[9].number("r2") == j["positions"][9]["key_r2"].get<double>());
}

TEST_CASE("convert kvp: an output that cannot be written is seen before anything is fitted") {
  const TestFolder folder;
  const fs::path out = folder / "maps";
  const std::string command = "convert kvp --quiet " + pair + out.string() + " --window 32 --fit " +
                              write_ids(folder, 400) + " ";
  const auto files = folder.num_files();
  check_refused(command + "--plot " + (folder / "layers.txt").string(), "layers.txt");
  check_refused(command + "--plot-positions " + (folder / "positions").string(), "positions");
  const std::string plot = "--plot " + (folder / "a.svg").string();
  check_refused(command + plot + " --csv " + (folder / "a.csv").string(), "another stem");
  check_refused(command + plot + " --csv " + (folder / "a-r2.csv").string(), "another stem");
  check_refused(command + plot + " --plot-positions " + (folder / "a.png").string(),
                "another stem");
  fs::create_directory(folder / "wide-r2.svg");
  check_refused(command + "--plot " + (folder / "wide.svg").string(), "wide-r2.svg");
  fs::remove(folder / "wide-r2.svg");
  check_refused(command + "--csv " + (folder / "none" / "errors.csv").string(), "errors.csv");
  check_refused(command + "--csv " + (folder / "errors.csv").string() + " --plot " +
                    (folder / "none" / "layers.svg").string(),
                "layers");
  CHECK(folder.num_files() == files);
}

TEST_CASE("validate kvp: an auxiliary in a folder named lp-0.50 is the model in that folder") {
  const TestFolder folder;
  fs::copy(fs::path(oracle) / "kvp" / "auxiliary", folder / "lp-0.50");
  const std::string rest = " --predictor " + oracle + "kvp/predictor --text " +
                           write_ids(folder, 60) + " --base " + oracle + "openelm";
  const json expected =
      run_json("validate kvp --quiet --json --auxiliary " + oracle + "kvp/auxiliary" + rest);
  const ProgramResult named = run_program("validate kvp --quiet --json --auxiliary lp-0.50" + rest,
                                          "cd " + folder.path().string() + ";");
  CAPTURE(named.errors);
  REQUIRE(named.status == 0);
  CHECK(json::parse(named.output) == expected);
  for (const std::string flag : {"--z-loss nan", "--base-weight -1", "--auxiliary-weight inf",
                                 "--consistency-weight -0.1"}) {
    check_refused(
        "validate kvp --quiet --auxiliary " + oracle + "kvp/auxiliary" + rest + " " + flag,
        "a finite number of at least 0");
  }
}

TEST_CASE("convert kvp: tokenizers that differ are seen") {
  const TestFolder folder;
  const fs::path data = fs::path(KVCAST_SOURCE_DIR) / "tests" / "text" / "data";
  const fs::path a = folder / "a", b = folder / "b";
  fs::copy(fs::path(oracle) / "openelm", a);
  fs::copy(fs::path(oracle) / "openelm", b);
  const auto tokenizer = [](const char* first, const char* second) {
    const json vocab{{first, 0}, {second, 1}, {"c", 2}, {"d", 3}};
    return json{{"version", "1.0"},
                {"added_tokens", json::array()},
                {"normalizer", nullptr},
                {"pre_tokenizer",
                 {{"type", "ByteLevel"},
                  {"add_prefix_space", false},
                  {"trim_offsets", true},
                  {"use_regex", true}}},
                {"post_processor", nullptr},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  };
  std::ofstream(a / "tokenizer.json") << tokenizer("a", "b");
  std::ofstream(b / "tokenizer.json") << tokenizer("b", "a");
  std::ofstream(folder / "text") << "abcdabcdabcdabcdabcdabcdabcdabcd";
  const std::string text = (folder / "text").string();
  check_refused("convert kvp --quiet --base " + a.string() + " --auxiliary " + b.string() +
                    " --fit " + text + " " + (folder / "maps").string(),
                "tokenizers that differ: from token 0 on a and b read other ids");
  // The same letters as ids: equal lists, and other texts.
  json ids = json::array();
  for (int i = 0; i < 24; ++i) ids.push_back(i % 4);
  std::ofstream(folder / "ids.json") << ids;
  const std::string given = (folder / "ids.json").string() + " " + (folder / "maps").string();
  check_refused(
      "convert kvp --quiet --base " + a.string() + " --auxiliary " + b.string() + " --fit " + given,
      "tokenizers that differ: a and b read the ids as different texts");
  // Without a text, and with one whose letters both have in the same places, all tokens count.
  const std::string two = " --base " + a.string() + " --auxiliary " + b.string();
  const std::string differ =
      "model b: got a tokenizer that reads token id 0 as another text, expected the tokenizer of "
      "the base model a";
  check_refused("convert kvp --quiet --identity" + two + " " + (folder / "maps").string(), differ);
  std::ofstream(folder / "common") << "cdcdcdcdcdcdcdcdcdcdcdcd";
  check_refused("convert kvp --quiet" + two + " --fit " + (folder / "common").string() + " " +
                    (folder / "maps").string(),
                differ);
  CHECK_FALSE(fs::exists(folder / "maps"));
  run_json("convert kvp --quiet --json --identity --base " + a.string() + " --auxiliary " +
           a.string() + " " + (folder / "same").string());
  CHECK(run_json("convert kvp --quiet --json --base " + a.string() + " --auxiliary " + a.string() +
                 " --fit " + text + " " + (folder / "maps").string())["fitted_tokens"] == 16);
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
      "estimate --quiet --json --model qwen2.5-7b --hardware h200 --prompt-len 1k --method ";
  for (const std::string method :
       {"kvp:auxiliary=qwen2.5-0.5b", "specprefill:speculator=qwen2.5-0.5b,keep=0.3"}) {
    CHECK(run_json(command + method)["ttft_speedup"].get<double>() > 1);
  }
  check_refused(command + "kvp:auxiliary=llama-3.2-1b",
                "a vocabulary of 128256, expected the 152064 of qwen2.5-7b");
}

}  // namespace
}  // namespace kvcast::cli
