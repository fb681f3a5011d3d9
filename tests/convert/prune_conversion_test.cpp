#include "model/convert/prune_conversion.h"

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/config/layer_pruning.h"
#include "model/execute/generate.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"
#include "tests/execute/random_checkpoint.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Indices = std::vector<std::size_t>;

const fs::path oracle = fs::path(KVCAST_SOURCE_DIR) / "tests" / "oracle";

std::vector<float> numbers_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  const WeightReader reader = checkpoint.reader(info.name);
  std::size_t elements = 1;
  for (const std::uint64_t extent : reader.shape()) elements *= extent;
  std::vector<float> numbers(elements);
  reader.read_rows(0, std::span(numbers));
  return numbers;
}

TEST_CASE(
    "prune: every family's kept layers hold the source's numbers, whatever file they lie in") {
  // Fused and transposed projections, layers of different shapes, windows that follow the index.
  // Experts with a tensor each or stacked in one, latents, norms stored with an offset.
  for (const std::string family : {"openelm",
                                   "gpt2",
                                   "gpt_neox",
                                   "falcon_40b",
                                   "phi3",
                                   "gemma2",
                                   "gemma",
                                   "opt",
                                   "olmo",
                                   "mistral",
                                   "qwen2_windowed",
                                   "llama_sharded",
                                   "qwen3_windowed",
                                   "olmo2",
                                   "gemma3_text",
                                   "cohere2",
                                   "exaone4",
                                   "stablelm_parallel",
                                   "nemotron",
                                   "granitemoe",
                                   "gpt_oss",
                                   "mixtral",
                                   "qwen3_moe_windowed",
                                   "glm4_moe",
                                   "deepseek_v3",
                                   "glm4_moe_lite",
                                   "granitemoehybrid",
                                   "nemotron_h",
                                   "lfm2"}) {
    CAPTURE(family);
    const TestFolder folder;
    const Checkpoint before(oracle / family);
    const std::size_t layers = before.architecture().num_hidden_layers();
    const Indices kept = layers == 2 ? Indices{1} : Indices{1, 2};
    const ConversionReport report = convert_to_pruned(before, folder / "out", {kept});
    const Checkpoint after(folder / "out");
    const Architecture& a = after.architecture();
    REQUIRE(a.num_hidden_layers() == kept.size());
    CHECK(a.pruning == KeptLayers{kept, layers});
    for (std::size_t i = 0; i < kept.size(); ++i) {
      CHECK(a.decoder.layers[i] == before.architecture().decoder.layers[kept[i]]);
    }
    std::uint64_t parameters = 0;
    for (const auto& [name, info] : weights_of(record(a, {}, {}))) {
      CAPTURE(name);
      const WeightName parsed = parse_weight_name(name);
      TensorInfo source = info;
      if (parsed.layer) {
        source.name =
            "layers." + std::to_string(kept[*parsed.layer]) + "." + parsed.part + parsed.kind;
      }
      const std::vector<float> numbers = numbers_of(after, info);
      CHECK(numbers == numbers_of(before, source));
      parameters += numbers.size();
    }
    CHECK(report.parameters_after == parameters);
    // The corrections of routers keep their shape, [E] or [1, E].
    const auto corrections = [](const fs::path& file) {
      std::set<std::vector<std::uint64_t>> shapes;
      for (const StoredTensor& t : read_safetensors(MappedFile::open(file))) {
        if (t.name.ends_with("e_score_correction_bias")) shapes.insert(t.shape);
      }
      return shapes;
    };
    const fs::path source = oracle / family / "model.safetensors";
    if (fs::exists(source)) {
      CHECK(corrections(folder / "out/model.safetensors") == corrections(source));
    }
    CHECK(report.parameters_before > parameters);
    // It loads: nothing is missing and nothing is left over.
    execute::check_checkpoint(after, {});
  }
}

TEST_CASE("prune: all layers kept compute what the source does") {
  const TestFolder folder;
  const Checkpoint before(oracle / "openelm");
  convert_to_pruned(before, folder / "out", {{0, 1, 2}});
  const Checkpoint after(folder / "out");
  execute::Request request;
  request.tokens = {{5, 9, 2, 7, 1}};
  const execute::Session a(before, {.loops = execute::Loops::Counting});
  const execute::Session b(after, {.loops = execute::Loops::Counting});
  const execute::Generation x = a.run(request);
  const execute::Generation y = b.run(request);
  REQUIRE(x.logits.size() == y.logits.size());
  CHECK(std::equal(x.logits.begin(), x.logits.end(), y.logits.begin()));
}

TEST_CASE("prune: lists with an entry a layer keep the entries of the kept layers") {
  const TestFolder folder;
  convert_to_pruned(Checkpoint(oracle / "openelm"), folder / "out", {{0, 2}});
  const json before = read_json_file(oracle / "openelm" / "config.json");
  const json after = read_json_file(folder / "out" / "config.json");
  CHECK(after["num_transformer_layers"] == 2);
  for (const char* key : {"num_query_heads", "num_kv_heads", "ffn_multipliers"}) {
    CAPTURE(key);
    CHECK(after[key] == json({before[key][0], before[key][2]}));
  }
  CHECK(after["kvcast_prune"] == json{{"kept", {0, 2}}, {"of", 3}});
}

TEST_CASE("prune: the layers to keep are a fraction of Table 4 or a list") {
  CHECK(parse_kept_layers("0.5", 5) == Indices{0, 2, 4});
  CHECK(parse_kept_layers("0.25", 5) == Indices{0, 4});
  CHECK(parse_kept_layers("0,3", 5) == Indices{0, 3});
  CHECK(parse_kept_layers("4", 5) == Indices{4});
  for (const char* wrong : {"", "0.33", "1,,2", "1,", "-1", "a", "0.5,1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_kept_layers(wrong, 5), Error);
  }
}

/// The message, when nothing was written.
std::string refusal(const TestFolder& folder, const Checkpoint& checkpoint,
                    const PruneConversion& c, const fs::path& out) {
  const auto files = folder.num_files();
  const std::string line = message_of([&] { convert_to_pruned(checkpoint, out, c); });
  CHECK(folder.num_files() == files);
  CHECK(line.find('\n') == std::string::npos);
  return line;
}

TEST_CASE("prune: what cannot be pruned is refused, and nothing is written") {
  const TestFolder folder;
  const Checkpoint openelm(oracle / "openelm");
  const auto refused = [&](const Checkpoint& source, const PruneConversion& c, const fs::path& out,
                           const std::string& part) {
    const std::string line = refusal(folder, source, c, out);
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
  };
  const fs::path out = folder / "out";
  refused(openelm, {{0, 3}}, out, "got layer 3, expected indices from 0 to 2");
  refused(openelm, {{2, 0}}, out, "got layer 0 after layer 2");
  refused(openelm, {{}}, out, "no layer to keep");
  refused(openelm, {{0}, DType::FP8}, out, "got dtype fp8");
  refused(openelm, {{0}}, oracle / "openelm", "got a folder with files in it");
  refused(openelm, {{0}}, folder / "no" / "where", "does not exist");
  refused(Checkpoint(oracle / "t5"), {{0}}, out, "an encoder-decoder model");
  refused(Checkpoint(oracle / "mlkv_neox"), {{0}}, out, "whose layers share keys");
  refused(Checkpoint(oracle / "glm_moe_dsa"), {{0, 2}}, out, "the tokens that others chose");
  convert_to_pruned(openelm, out, {{0, 2}});
  refused(Checkpoint(out), {{0}}, folder / "again", "a layer-pruned model");
}

TEST_CASE("prune: a config whose kept layers contradict it is refused") {
  const json config = read_json_file(oracle / "openelm" / "config.json");
  const auto refused = [&](const char* pruning) {
    json changed = config;
    changed["kvcast_prune"] = json::parse(pruning);
    return message_of([&] { read_config(changed, "x", "config.json"); });
  };
  const std::string expected = "expected 3 ascending indices below 4";
  CHECK(refused(R"({"kept": [0, 1], "of": 4})").find(expected) != std::string::npos);
  CHECK(refused(R"({"kept": [0, 2, 1], "of": 4})").find(expected) != std::string::npos);
  CHECK(refused(R"({"kept": [0, 1, 4], "of": 4})").find(expected) != std::string::npos);
  CHECK(refused(R"({"kept": [0, 1, -2], "of": 4})").find(expected) != std::string::npos);
  CHECK(refused(R"({"kept": [0, 1, 3], "of": 4})") == "(no Error was thrown)");
}

}  // namespace
}  // namespace kvcast
