// `convert slim` and `choose slim`.
#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/cli/program.h"

namespace kvcast::cli {
namespace {

const std::string tokens = " --calibration-tokens 1,2,3,4,5,6,7,8,9,10 ";

TEST_CASE("convert slim: the new checkpoint gives the tokens of the old one from half the cache") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const json j =
      run_json("convert slim -q --json --max-error 0.1 " + oracle + "opt " + out + tokens);
  check_keys(j, {"layers", "calibration", "calibration_rows", "max_error", "parameters_before",
                 "parameters_after", "kv_cache_ratio", "dtype"});
  CHECK(j["calibration_rows"] == 10);
  CHECK(j["kv_cache_ratio"] == 0.5);
  for (const json& layer : j["layers"]) {
    CHECK(layer["chosen"] == "kcache");
    CHECK(layer["key_condition"].get<double>() > 1);
    const json& errors = layer["relative_error"];
    CHECK(errors["kcache"]["fp32"] < errors["kcache"]["fp16"]);
    CHECK(errors["kcache"]["fp16"] < errors["kcache"]["bf16"]);
    CHECK(errors["xcache"]["fp32"] < 1e-6);
  }
  const std::string run = "run --json --count --tokens 1,2,3,4,5 --output-len 6 --model ";
  const json vanilla = run_json(run + oracle + "opt");
  const json slim = run_json(run + out + " --method slim");
  CHECK(slim["generated_tokens"] == vanilla["generated_tokens"]);
  CHECK(slim["kv_cache_bytes"].get<int>() * 2 == vanilla["kv_cache_bytes"].get<int>());
  check_counted(slim);

  const json sparse = run_json(run + out + " --method slim:threshold=0.05");
  CHECK(sparse["skipped_share"].get<double>() > 0);
  CHECK(sparse["counted_flops"].get<int>() + sparse["skipped_flops"].get<int>() ==
        sparse["analytic_flops"].get<int>());
  CHECK(sparse["counted_bytes"].get<int>() + sparse["skipped_bytes"].get<int>() ==
        sparse["analytic_bytes"].get<int>());

  check_refused("run --json --tokens 1,2,3 --model " + out, "expected --method slim");
  check_refused("run --json --tokens 1,2,3 --method slim --model " + oracle + "opt",
                "kvcast convert slim");
  check_refused("run --json --tokens 1,2,3 --method slim:option=vcache --model " + out,
                "converted to other forms");
  check_refused("convert slim -q " + out + " " + folder.file("again") + tokens, "converted");
  check_refused(
      "convert mlkv -q " + out + " " + folder.file("again") + " --kv-layers 1 --kv-heads 1",
      "a model converted for the method slim");
  check_refused("convert slim -q " + oracle + "opt " + out + tokens, "a folder with files in it");
  CHECK(!fs::exists(folder / "again"));
}

/// A WAV file of so many 16-bit samples at 16 kHz.
void write_sound(const std::string& path, std::uint32_t samples) {
  const auto number = [](std::uint32_t x, int bytes) {
    std::string s;
    for (int i = 0; i < bytes; ++i) s += static_cast<char>(x >> (8 * i) & 255);
    return s;
  };
  std::string data;
  for (std::uint32_t i = 0; i < samples; ++i) data += number(i * 7919 % 4096, 2);
  write(path, "RIFF" + number(36 + 2 * samples, 4) + "WAVEfmt " + number(16, 4) + number(1, 2) +
                  number(1, 2) + number(16000, 4) + number(32000, 4) + number(2, 2) +
                  number(16, 2) + "data" + number(2 * samples, 4) + data);
}

// 8 positions of 20 ms are 160 ms, 2560 samples at 16 kHz.
TEST_CASE("convert slim: sound shorter than its 8 positions is refused, and nothing is written") {
  const TestFolder folder;
  const std::string sound = folder.file("short.wav");
  const std::string convert = "convert slim -q --max-error 0.5 " + oracle + "whisper " +
                              folder.file("out") + " --calibration-audio " + sound;
  write_sound(sound, 160);
  check_refused(convert, "short.wav: got 0.01 s of sound, expected at least 0.16 s");
  write_sound(sound, 2559);
  check_refused(convert, "expected at least 0.16 s");
  CHECK(folder.num_files() == 1);
  write_sound(sound, 2560);
  run_well(convert);
}

// Prompts of 9 and 2 tokens, 15 decode steps after each.
TEST_CASE("convert slim: calibration prompts of different lengths are compared each for itself") {
  const TestFolder folder;
  const auto convert = [&](const std::string& out, const std::string& ids) {
    return run_json("convert slim -q --json --max-error 0.1 --dtype bf16 " + oracle + "opt " +
                    folder.file(out) + " --calibration-tokens '" + ids + "'");
  };
  const json j = convert("a", "1,2,3,4,5,6,7,8,9;1,2");
  CHECK(j["calibration_rows"] == 9 + 2);
  CHECK(j["compared_positions"] == 9 + 15 + 2 + 15);
  CHECK(j["logit_error"].get<double>() > 1e-4);  // bf16 has 8 bits
  CHECK(j["logit_error"].get<double>() < 0.1);
  const json turned = convert("b", "1,2;1,2,3,4,5,6,7,8,9");
  CHECK(turned["logit_error"].get<double>() == near(j["logit_error"].get<double>()).epsilon(1e-6));
  CHECK(turned["same_next_tokens"] == j["same_next_tokens"]);
}

TEST_CASE("convert slim: errors as rows and as a picture, and what they do to the logits") {
  const TestFolder folder;
  const std::string out = folder.file("out");
  const std::string csv = folder.file("errors.csv");
  const std::string plot = folder.file("picture.svg");
  const std::string convert = "convert slim -q --max-error 0.1 --dtype bf16 " + oracle + "opt ";
  const json j = run_json(convert + out + tokens + "--json --csv " + csv + " --plot " + plot);
  check_keys(j,
             {"logit_error", "same_next_tokens", "compared_positions", "layers_under_5_percent"});
  CHECK(j["logit_error"].get<double>() > 1e-4);  // bf16 has 8 bits
  CHECK(j["logit_error"].get<double>() < 0.1);
  CHECK(j["compared_positions"] == 10 + 15);  // the prompt, and what follows its last token
  const CsvTable rows = CsvTable::read(csv);
  std::size_t row = 0;
  for (const json& layer : j["layers"]) {
    const json& errors = layer["relative_error"];
    for (const char* form : {"kcache", "vcache", "xcache"}) {
      for (const char* storage : {"fp32", "fp16", "bf16"}) {
        CHECK(rows[row].whole("layer") == layer["layer"]);
        CHECK(rows[row].text("form") == form);
        CHECK(rows[row].text("storage") == storage);
        CHECK(rows[row].number("relative_error") == errors[form][storage]);
        CHECK((rows[row].text("chosen") == "true") == (layer["chosen"] == form));
        CHECK(rows[row].number("logit_error") == j["logit_error"]);
        ++row;
      }
    }
  }
  CHECK(rows.size() == row);
  const json& counts = j["layers_under_5_percent"]["self"];
  CHECK(counts["xcache"]["fp32"] == j["layers"].size());
  CHECK(!j["layers_under_5_percent"].contains("cross"));
  CHECK(fs::exists(plot));
  CHECK(fs::exists(folder / "picture.csv"));
}

TEST_CASE("convert slim: made-up input is warned of once the request is accepted, not before") {
  const TestFolder folder;
  const ProgramResult accepted =
      run_well("convert slim " + oracle + "opt " + folder.file("out") + " --max-error 0.1");
  CHECK(contains(accepted.errors, "made-up input"));
  CHECK(num_lines(accepted.errors) == 1);
}

TEST_CASE("convert slim: --csv - writes the rows to standard output, and nothing else") {
  const TestFolder folder;
  const std::string convert = "convert slim -q --max-error 0.1 " + oracle + "opt ";
  run_well(convert + folder.file("a") + tokens + "--csv " + folder.file("errors.csv"));
  const ProgramResult rows = run_well(convert + folder.file("b") + tokens + "--csv -");
  CHECK(rows.output == contents(folder / "errors.csv"));
  CHECK(!fs::exists("-"));
}

// With rotary positions inputs cannot be kept.
TEST_CASE("convert slim: forms that no layer could take are not counted") {
  const TestFolder folder;
  const std::string convert = "convert slim -q --max-error 0.1 " + oracle + "llama_mha ";
  const json j = run_json(convert + folder.file("a") + tokens + "--json");
  const json& counts = j["layers_under_5_percent"]["self"];
  CHECK(counts.contains("kcache"));
  CHECK(!counts.contains("xcache"));
  const std::string text = run_well(convert + folder.file("b") + tokens).output;
  CHECK(contains(text, "vcache "));
  CHECK_FALSE(contains(text, "xcache 0/0/0"));
}

TEST_CASE("choose slim: forms ranked by decode time, rejected ones with the reason") {
  const json j = run_json(
      "choose slim --json --model codellama-7b --hardware a100-80gb --batch 4 --prompt-len 16000");
  const json& rows = j["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["method"] == "slim:option=kcache");
  CHECK(std::is_sorted(rows.begin(), rows.end(), [](const json& a, const json& b) {
    return a["tpot_s"].get<double>() < b["tpot_s"].get<double>();
  }));
  for (const json& row : rows) {
    check_keys(row, {"method", "tpot_s", "ttft_s", "peak_memory_bytes", "kv_cache_ratio"});
    const bool plain = row["method"] == "plain";
    CHECK(row["kv_cache_ratio"] == (plain ? 1 : 0.5));
    CHECK(row.contains("break_even_batch") == !plain);
  }
  CHECK(rows[0]["break_even_context"]["from"] == 1);
  CHECK(j["rejected"].empty());
  const json grouped = run_json(
      "choose slim --json --model gemma2-9b --hardware a100-80gb --batch 4 --prompt-len 16000");
  REQUIRE(grouped["rejected"].size() == 1);
  CHECK(contains(grouped["rejected"][0]["reason"], "2048 features cannot hold the 3584"));
}

// 64 tokens of 16 sequences, 768 fp32 numbers each, are the 3 MiB that an RTX 3060 has on chip:
// after them T5-base's shared cache is read once a layer, and pays off from a longer context on.
TEST_CASE("choose slim: all stretches of sizes are said, each as the estimates have it") {
  const std::string sizes = " --model t5-base --hardware rtx-3060-12gb --batch 16 --dtype fp32 ";
  const json j = run_json("choose slim --json" + sizes);
  const auto speedup = [&](const json& row, const json& context) {
    return run_json("estimate --json -q" + sizes + "--prompt-len " + context.dump() + " --method " +
                    row["method"].get<std::string>())["tpot_speedup"]
        .get<double>();
  };
  bool some_have_two = false;
  for (const json& row : j["rows"]) {
    if (row["method"] == "plain") continue;
    CAPTURE(row.dump());
    const json& all = row["faster_contexts"];
    CHECK(row["break_even_context"] == (all.empty() ? json() : all[0]));
    if (all.size() < 2) continue;
    some_have_two = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(speedup(row, all[i]["from"]) > 1);
      if (i + 1 < all.size()) CHECK(!all[i]["to"].is_null());
      if (all[i]["from"] > 1) CHECK(speedup(row, all[i]["from"].get<int>() - 1) <= 1);
      if (all[i]["to"].is_null()) continue;
      CHECK(speedup(row, all[i]["to"]) > 1);
      CHECK(speedup(row, all[i]["to"].get<int>() + 1) <= 1);
    }
  }
  CHECK(some_have_two);
  CHECK(contains(run_well("choose slim -q" + sizes).output, " to "));
}

TEST_CASE("choose slim: a stretch without an end says where the search ended") {
  check_contains(
      run_well("choose slim -q --model codellama-7b --hardware a100-80gb --prompt-len 16000")
          .output,
      {"from 1 ", "still faster where the search ends, batch 4096 and context 131072\n"});
}

// The encoder's 1500 states of 512 fp16 numbers are 1,536,000 bytes a sequence; an H100 has 50 MiB
// on chip, which hold 34 of them.
TEST_CASE("choose slim: the shared cache is on chip as long as it fits") {
  const auto on_chip = [](int batch) {
    const json j = run_json(
        "choose slim --json --model whisper-base --dtype fp16 --hardware h100-sxm --batch " +
        std::to_string(batch));
    for (const json& row : j["rows"]) {
      if (row["method"] == "slim:option=encdec2") return row["shared_cache_on_chip"].get<bool>();
    }
    return false;
  };
  CHECK(on_chip(34));
  CHECK(!on_chip(35));
}

}  // namespace
}  // namespace kvcast::cli
