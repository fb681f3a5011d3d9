// `kvcast run` on the checkpoints of tests/oracle: what it prints and writes is what transformers
// computed. That every way of running is right is tested in tests/execute.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/json_file.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "tests/cli/program.h"
#include "tests/execute/relative_difference.h"

namespace kvcast::cli {
namespace {

using Ids = std::vector<std::uint32_t>;
using Sequences = std::vector<Ids>;

struct Values {
  DType dtype = DType::FP32;
  std::vector<std::uint64_t> shape;
  std::vector<float> data;
};

Values read_tensor(const fs::path& file, const std::string& name) {
  for (const StoredTensor& t : read_safetensors(MappedFile::open(file))) {
    if (t.name != name) continue;
    Values v{t.readable_dtype(), t.shape, std::vector<float>(t.elements())};
    read_elements(t, 0, v.data);
    return v;
  }
  FAIL("no tensor " << name << " in " << file);
  return {};
}

/// The numbers of a file's only tensor, not narrowed.
std::vector<double> read_doubles(const fs::path& file) {
  const std::vector<StoredTensor> stored = read_safetensors(MappedFile::open(file));
  REQUIRE(stored.size() == 1);
  std::vector<double> values(stored[0].elements());
  read_elements(stored[0], 0, values);
  return values;
}

/// Its prompts as --tokens takes them: "1,2;3,4".
std::string joined(const Sequences& sequences) {
  std::string text;
  for (const Ids& ids : sequences) {
    text += fmt::format("{}{}", text.empty() ? "" : ";", fmt::join(ids, ","));
  }
  return "'" + text + "'";
}

/// What expected.json says of a case.
struct Case {
  explicit Case(const std::string& name)
      : folder(oracle + name), expected(read_json_file(folder / "expected.json")) {}
  Sequences sequences(const char* key) const { return expected.at(key).get<Sequences>(); }
  std::string run(const std::string& arguments) const {
    return "run --quiet --model " + folder.string() + " " + arguments;
  }

  fs::path folder;
  json expected;
};

}  // namespace

TEST_CASE("run: --json has every key of the contract, in base units") {
  const json j = run_json(Case("llama_mha").run("--tokens 1,2,3 --output-len 5 --count --json"));
  check_keys(j, {"generated_tokens", "ttft_s", "tpot_s", "kv_cache_bytes", "analytic_flops",
                 "analytic_bytes", "counted_flops", "counted_bytes"});
  CHECK(j["generated_tokens"].size() == 5);
  CHECK(j["ttft_s"] > 0);
  CHECK(j["ttft_s"] < 60);
  CHECK(j["tpot_s"] > 0);
  // 2 layers, keys and values of 3 heads of 8, fp32, 3 + 5 tokens.
  CHECK(j["kv_cache_bytes"] == 2 * 2 * 3 * 8 * 4 * 8);
  CHECK_FALSE(run_json(Case("llama_mha").run("--tokens 1 --json")).contains("counted_flops"));
}

TEST_CASE("run: --rounds gives every round's times and their medians, and the same tokens") {
  const Case c("llama_mha");
  const json once = run_json(c.run("--tokens 1,2,3 --output-len 5 --json"));
  CHECK_FALSE(once.contains("ttft_rounds_s"));
  const json j = run_json(c.run("--tokens 1,2,3 --output-len 5 --rounds 3 --json"));
  CHECK(j["generated_tokens"] == once["generated_tokens"]);
  CHECK(j["analytic_flops"] == once["analytic_flops"]);
  for (const auto& [rounds, median] :
       {std::pair{"ttft_rounds_s", "ttft_s"}, std::pair{"tpot_rounds_s", "tpot_s"}}) {
    auto seconds = j[rounds].get<std::vector<double>>();
    REQUIRE(seconds.size() == 3);
    std::sort(seconds.begin(), seconds.end());
    CHECK(seconds[0] > 0);
    CHECK(j[median] == seconds[1]);
  }
}

TEST_CASE("run: --logits writes the prompt's logits, those of transformers") {
  const TestFolder folder;
  const fs::path file = folder / "logits.safetensors";
  for (const char* name : {"llama_sharded", "gpt2", "gemma2", "gpt_neox", "falcon_40b"}) {
    CAPTURE(name);
    const Case c(name);
    const Values expected = read_tensor(c.folder / "expected.safetensors", "logits");
    const Sequences prompts = c.sequences("prompt");
    run_json(
        c.run("--json --output-len 2 --tokens " + joined(prompts) + " --logits " + file.string()));
    const Values both = read_tensor(file, "logits");
    CHECK(both.shape == expected.shape);
    CHECK(execute::relative_difference(both.data, expected.data) < 1e-4);

    run_json(c.run("--json --output-len 1 --tokens " + joined({prompts[0]}) + " --logits " +
                   file.string()));
    const Values first = read_tensor(file, "logits");
    CHECK(first.shape == std::vector<std::uint64_t>{expected.shape[1], expected.shape[2]});
    // The first of the two sequences.
    const std::span<const float> of_first(expected.data.data(), expected.data.size() / 2);
    CHECK(execute::relative_difference(first.data, of_first) < 1e-4);
  }
  CHECK(folder.num_files() == 1);
}

TEST_CASE("run: T5 reads --encoder-tokens, and --tokens for its decoder") {
  const TestFolder folder;
  const fs::path file = folder / "logits.safetensors";
  const Case c("t5");
  const std::string encoder = "--json --encoder-tokens " + joined(c.sequences("encoder_tokens"));
  run_json(
      c.run(encoder + " --tokens " + joined(c.sequences("prompt")) + " --logits " + file.string()));
  const Values expected = read_tensor(c.folder / "expected.safetensors", "logits");
  const Values ours = read_tensor(file, "logits");
  CHECK(ours.shape == expected.shape);
  CHECK(execute::relative_difference(ours.data, expected.data) < 1e-4);
  // Without --tokens the decoder begins as config.json says.
  const std::string first = joined({c.sequences("encoder_tokens")[0]});
  const json j = run_json(c.run("--json --output-len 64 --encoder-tokens " + first));
  CHECK(j["generated_tokens"] == c.expected["greedy"][0]);
}

TEST_CASE("run: Whisper reads --features") {
  const TestFolder folder;
  const fs::path file = folder / "logits.safetensors";
  const Case c("whisper");
  const std::string features = "--json --features " + (c.folder / "features.safetensors").string();
  run_json(c.run(features + " --tokens " + joined({c.sequences("prompt")[0]}) + " --logits " +
                 file.string()));
  const Values expected = read_tensor(c.folder / "expected.safetensors", "logits");
  const std::span<const float> first(expected.data.data(), expected.data.size() / 2);
  CHECK(execute::relative_difference(read_tensor(file, "logits").data, first) < 1e-4);
  const json j = run_json(c.run(features + " --output-len 64"));
  CHECK(j["generated_tokens"] == c.expected["greedy"][0]);
}

TEST_CASE("run: counted work equals analytic work for every family and both attention kinds") {
  for (const auto& entry : fs::directory_iterator(oracle)) {
    if (!fs::exists(entry.path() / "expected.json")) continue;
    const Case c(entry.path().filename().string());
    CAPTURE(c.folder);
    std::string input = "--tokens " + joined(c.sequences("prompt"));
    if (c.expected.contains("encoder_tokens")) {
      input += " --encoder-tokens " + joined(c.sequences("encoder_tokens"));
    }
    const fs::path features = c.folder / "features.safetensors";
    if (fs::exists(features)) {
      input = "--features " + features.string() + " --batch 2 --tokens " +
              joined({c.sequences("prompt")[0]});
    }
    for (const std::string attention : {"eager", "tiled"}) {
      CAPTURE(attention);
      const json j =
          run_json(c.run(input + " --count --output-len 4 --json --attention " + attention));
      check_counted(j);
      CHECK(j["counted_flops"] > 0);
    }
  }
}

TEST_CASE("run: --dtype fp64 computes in doubles, counts their bytes and writes them") {
  const TestFolder folder;
  const fs::path file = folder / "logits.safetensors";
  const Case c("llama_gqa_llama3_rope");
  const Sequences prompts = c.sequences("prompt");
  const std::string arguments =
      "--json --output-len 3 --count --tokens " + joined(prompts) + " --logits " + file.string();
  const json narrow = run_json(c.run(arguments));
  CHECK(narrow["dtype"] == "fp32");
  const Values fp32 = read_tensor(file, "logits");
  CHECK(fp32.dtype == DType::FP32);
  const json wide = run_json(c.run(arguments + " --dtype fp64"));
  CHECK(wide["dtype"] == "fp64");
  const Values fp64 = read_tensor(file, "logits");
  CHECK(fp64.dtype == DType::FP64);
  CHECK(fp64.shape == fp32.shape);
  const std::vector<double> tiled = read_doubles(file);
  CHECK(execute::relative_difference(fp64.data, fp32.data) < 1e-4);
  CHECK(wide["generated_tokens"] == narrow["generated_tokens"]);
  CHECK(wide["counted_flops"] == narrow["counted_flops"]);
  CHECK(wide["counted_bytes"] == wide["analytic_bytes"]);
  CHECK(wide["kv_cache_bytes"] == 2 * narrow["kv_cache_bytes"].get<std::uint64_t>());
  CHECK(wide["weight_bytes"] == 2 * narrow["weight_bytes"].get<std::uint64_t>());

  // Without --count nothing of it is said, and eager attention gives the same numbers.
  const json eager = run_json(c.run("--json --attention eager --dtype fp64 --tokens " +
                                    joined(prompts) + " --logits " + file.string()));
  CHECK_FALSE(eager.contains("counted_flops"));
  CHECK(execute::relative_difference(read_doubles(file), tiled) < 1e-12);
}

TEST_CASE("run: one thread and two give the same bytes") {
  const TestFolder folder;
  for (const char* name : {"llama_gqa_llama3_rope", "gpt_neox", "opt"}) {
    CAPTURE(name);
    const Case c(name);
    const std::string arguments =
        "--json --output-len 20 --tokens " + joined(c.sequences("prompt")) + " --logits ";
    const fs::path one = folder / "one.safetensors";
    const fs::path two = folder / "two.safetensors";
    const json a = run_json(c.run(arguments + one.string() + " --threads 1"));
    const json b = run_json(c.run(arguments + two.string() + " --threads 2"));
    CHECK(a["generated_tokens"] == b["generated_tokens"]);
    CHECK(contents(one) == contents(two));
  }
}

TEST_CASE("run: without --json the tokens are on stdout, and nothing else") {
  const Case c("llama_mha");
  const Sequences prompts = c.sequences("prompt");
  const Sequences greedy = c.sequences("greedy");
  const std::string first = fmt::format("{}\n", fmt::join(greedy[0], ","));
  const std::string second = fmt::format("{}\n", fmt::join(greedy[1], ","));
  const ProgramResult one = run_well(c.run("--output-len 64 --tokens " + joined({prompts[0]})));
  CHECK(one.output == first);
  CHECK(one.errors.empty());
  const ProgramResult both = run_program(c.run("--output-len 64 --tokens " + joined(prompts)));
  CHECK(both.output == first + second);
}

TEST_CASE("run: a prompt file of ids, and prefill in chunks, change nothing") {
  const TestFolder folder;
  const Case c("qwen2");
  const json whole =
      run_json(c.run("--json --output-len 9 --tokens " + joined(c.sequences("prompt"))));
  const fs::path file = folder / "prompt.json";
  write(file, c.expected["prompt"].dump());
  const json j = run_json(c.run("--json --output-len 9 --chunk 5 --prompt-file " + file.string()));
  CHECK(j["generated_tokens"] == whole["generated_tokens"]);
  CHECK(j["prompt_len"] == c.sequences("prompt")[0].size());
}

TEST_CASE("run: the tokens of each expert, which forecasts then expect") {
  const TestFolder folder;
  const std::string csv = folder.file("tokens.csv");
  const json j = run_json("run --quiet --json --ignore-eos --model " + oracle +
                          "mixtral --tokens '1,2,3,4,5,6' --output-len 3 --expert-tokens " + csv);
  CHECK(j["prompt_len"] == 6);
  // 3 layers of 5 experts; 6 + 2 tokens choose 2 each.
  std::vector<std::vector<std::uint64_t>> tokens(3, std::vector<std::uint64_t>(5));
  const CsvTable table = CsvTable::read(csv);
  CHECK(table.size() == 15);
  for (const CsvRow& row : table.rows()) {
    tokens[row.whole("layer")][row.whole("expert")] = row.whole("tokens");
  }
  double read = 0;
  for (const auto& of_layer : tokens) {
    CHECK(std::accumulate(of_layer.begin(), of_layer.end(), 0ull) == 16);
    for (const std::uint64_t n : of_layer) {
      read += 1 - std::pow(1 - static_cast<double>(n) / 8, 3);
    }
  }
  // A decode step of three sequences is expected to read so many of 15 experts.
  const std::string estimate =
      "estimate --quiet --json --hardware a100-80gb --output-len 2 --prompt-len 8 --batch 3 "
      "--dtype fp32 --model " +
      oracle + "mixtral ";
  const auto decode_bytes = [&](const std::string& more) {
    return run_json(estimate + more)["decode_bytes_per_token"].get<double>() * 3;
  };
  const double alike = decode_bytes("");
  const double uneven = decode_bytes("--set expert_tokens=" + csv);
  const double expert = 3 * 26 * 15 * 4;
  const double usual = std::round(15 * (1 - std::pow(0.6, 3)));
  CHECK(alike - uneven == near((usual - std::round(read)) * expert));
  CHECK(uneven < alike);
  // In a sweep it is a value of the axis of overrides.
  const ProgramResult sweep =
      run_well("sweep --quiet --hardware a100-80gb --output-len 2 --model " + oracle +
               "mixtral --csv - --set expert_tokens=" + csv);
  check_contains(sweep.output, {csv});
}

TEST_CASE("run: weights, arithmetic and cache in narrow types, and what is refused") {
  const Case c("llama_gqa_llama3_rope");
  const std::string arguments = "--json --output-len 3 --tokens " + joined(c.sequences("prompt"));
  const json fp32 = run_json(c.run(arguments + " --weights fp32"));
  CHECK(fp32["weights"] == "fp32");
  // A file of FP32 numbers: nothing changes.
  const json stored = run_json(c.run(arguments));
  CHECK(stored["weights"] == "as-stored");
  CHECK(stored["arithmetic"] == "fp32");
  CHECK(stored["cache_dtype"] == "fp32");
  CHECK(stored["generated_tokens"] == fp32["generated_tokens"]);
  CHECK(stored["weight_bytes"] == fp32["weight_bytes"]);
  const auto refused = [&](const std::string& more, const std::string& line) {
    const ProgramResult result = run_program(c.run(arguments + more));
    CHECK(result.status == 2);
    check_contains(result.errors, {line});
  };
  refused(" --weights q8", "--weights: got q8, expected as-stored or fp32");
  refused(" --weights as-stored --dtype fp64", "got --dtype fp64, expected fp32");
  refused(" --arithmetic fp8", "--arithmetic: got fp8, expected fp32, bf16 or int8");
  refused(" --arithmetic bf16 --dtype fp64", "--arithmetic bf16: got --dtype fp64, expected fp32");
  refused(" --arithmetic int8", "--arithmetic int8: got no matrix of whole numbers with scales");
  refused(" --cache-dtype q8", "--cache-dtype: got q8, expected fp32, fp16, bf16, int8 or fp8");
  refused(" --cache-dtype int8 --dtype fp64", "a cache in int8: got a run in fp64");

  const json narrow = run_json(c.run(arguments + " --arithmetic bf16 --cache-dtype int8 --count"));
  CHECK(narrow["counted_flops"] == fp32["analytic_flops"]);
  CHECK(narrow["counted_bytes"] == narrow["analytic_bytes"]);
  CHECK(narrow["analytic_bytes"] < fp32["analytic_bytes"]);
  CHECK(narrow["kv_cache_bytes"].get<int>() * 4 == fp32["kv_cache_bytes"].get<int>());
}

TEST_CASE("run: a real model goes on with a text") {
  if (smollm_is_missing()) return;
  const std::string model = "run --quiet --model " + smollm.string() + " ";
  const std::string prompt = "'The capital of France is'";
  const json j = run_json(model + "--json --output-len 3 --prompt " + prompt);
  CHECK(j["text"].get<std::string>().starts_with(" Paris."));
  const ProgramResult streamed = run_program(model + "--output-len 3 --prompt " + prompt);
  CHECK(streamed.output == j["text"].get<std::string>() + "\n");

  const TestFolder folder;
  const fs::path file = folder / "prompt.txt";
  write(file, "The capital of France is");
  const json from_file = run_json(model + "--json --output-len 3 --prompt-file " + file.string());
  CHECK(from_file["generated_tokens"] == j["generated_tokens"]);
}

TEST_CASE("run: the same GGUF file and the same folder are models of model show and estimate") {
  const std::string folder = oracle + "llama_mha";
  CHECK(run_json("model show --json " + folder)["num_hidden_layers"] == 2);
  const std::string estimate = "estimate --quiet --json --hardware a100-80gb --prompt-len 32 ";
  const json e = run_json(estimate + "--model " + folder + " --set num_hidden_layers=4");
  // 4 layers, keys and values of 24 features, fp32 as published, 32 + 128 tokens.
  CHECK(e["kv_cache_bytes"] == 4 * 2 * 24 * 4 * (32 + 128));
  if (smollm_is_missing()) return;
  const json m = run_json("model show --json " + smollm.string());
  // 49152 · 576 + 30 · (576 · (576 + 2 · 192 + 576) + 3 · 576 · 1536 + 2 · 576) + 576.
  CHECK(m["parameters"] == 134515008);
  CHECK(m["kv_cache_bytes_per_token"] == 30 * 2 * 192 * 2);
  const json s = run_json(estimate + "--model " + smollm.string());
  // As the file stores them: Q8_0 has 34 bytes for 32 weights, Q4_1 has 20, the 61 norms are fp32.
  const std::uint64_t layer = 576 * (576 + 2 * 192 + 576) + 3 * 576 * 1536;
  CHECK(s["weight_bytes"] == 49152 * 576 / 32 * 34 + 30 * layer / 32 * 20 + 61 * 576 * 4);
}

}  // namespace kvcast::cli
