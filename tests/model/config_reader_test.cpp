#include "model/families/config_reader.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using nlohmann::json;

namespace {

/// Small configs of each reader, every size different, and what of them is refused: rows of
/// [name, config, JSON merge patch (a null removes the key), words of the message].
const json& cases() {
  static const json file =
      read_json_file(std::string(KVCAST_SOURCE_DIR) + "/tests/model/refused_configs.json");
  return file;
}

std::string refusal(const json& config, const std::vector<ConfigOverride>& overrides = {}) {
  return message_of([&] { read_config(config, "tiny", "tiny.json", overrides); });
}

/// All rows of a group, which has so many.
void check_refused(const char* group, std::size_t count) {
  REQUIRE(cases().at("refused").at(group).size() == count);
  for (const json& row : cases().at("refused").at(group)) {
    const std::string name = row[0];
    json config = cases().at("configs").at(row[1].get<std::string>());
    config.merge_patch(row[2]);
    const std::string line = refusal(config);
    CAPTURE(name);
    CHECK(line.starts_with("tiny.json"));
    for (const std::string part : row[3]) check_line(line, {part});
  }
}

const json& llama() { return cases().at("configs").at("llama"); }

}  // namespace

TEST_CASE("config_reader: the small configs of these tests are valid") {
  REQUIRE(cases().at("configs").size() == 10);
  for (const json& config : cases().at("configs")) {
    CHECK(refusal(config) == "(no Error was thrown)");
  }
}

TEST_CASE("config_reader: an entry that a family needs is missing, null, or of another kind") {
  check_refused("missing or of another kind", 30);
}

TEST_CASE("config_reader: a number beyond all models is refused where it stands") {
  check_refused("beyond all models", 8);
}

TEST_CASE("config_reader: entries that contradict each other are refused") {
  check_refused("contradictions", 20);
}

TEST_CASE("config_reader: what kvcast does not model is refused, not ignored") {
  check_refused("not modelled", 21);
}

TEST_CASE("config_reader: a model type that is unknown, near to one, or none at all") {
  check_refused("model types", 6);
  for (const std::string text : {"[]", "3", "\"llama\"", "null", "[[[[]]]]"}) {
    const std::string line = refusal(json::parse(text));
    CAPTURE(text);
    CHECK(line.starts_with("tiny.json: got "));
    CHECK(line.find("config.json") != std::string::npos);
  }
  CHECK(refusal(json::parse("{}")).find("/model_type: missing") != std::string::npos);
}

TEST_CASE("config_reader: every supported type is read by its family") {
  const std::vector<std::string> types = supported_model_types();
  for (const std::string type : {"llama", "mistral", "qwen2", "olmo", "phi3", "gemma", "gemma2"}) {
    CAPTURE(type);
    CHECK(std::find(types.begin(), types.end(), type) != types.end());
    json config = llama();
    config["model_type"] = type;
    const Architecture a = read_config(config, "tiny", "tiny.json");
    CHECK(a.model_type == type);
    CHECK(a.name == "tiny");
    CHECK(a.num_hidden_layers() == 3);
  }
}

TEST_CASE("config_reader: an override replaces an entry, or adds one that the family reads") {
  const auto read = [](const std::vector<ConfigOverride>& o) {
    return read_config(llama(), "tiny", "tiny.json", o);
  };
  CHECK(read({}).decoder.layers[0].heads == Heads{6, 3, 8});
  CHECK(read({{"num_key_value_heads", "2"}}).decoder.layers[0].heads == Heads{6, 2, 8});
  CHECK(
      read({{"num_key_value_heads", "2"}, {"num_key_value_heads", "1"}}).decoder.layers[0].heads ==
      Heads{6, 1, 8});                                                         // the last one holds
  CHECK(read({{"hidden_act", "gelu"}}).decoder.activation == Function::Gelu);  // a bare word
  CHECK(read({{"hidden_act", "\"relu\""}}).decoder.activation == Function::Relu);
  CHECK(read({{"tie_word_embeddings", "true"}}).tied_embeddings);
  CHECK(read({{"rope_scaling", R"({"type": "linear", "factor": 4})"}})
            .decoder.layers[0]
            .rope->position_scale == 4);
  CHECK(read({{"num_key_value_heads", "null"}}).decoder.layers[0].heads == Heads{6, 6, 8});
  CHECK(read({{"model_type", "olmo"}}).decoder.norm == NormKind::LayerPlain);
}

TEST_CASE("config_reader: an override of a key that the family does not read is refused") {
  const std::string line = refusal(llama(), {{"num_kv_heads", "2"}});
  CAPTURE(line);
  CHECK(line.starts_with("--set num_kv_heads: unknown config key"));
  CHECK(
      refusal(llama(), {{"num_key_value_head", "2"}}).find("did you mean 'num_key_value_heads'?") !=
      std::string::npos);
  CHECK(refusal(llama(), {{"sliding_window", "2"}}).starts_with("--set sliding_window"));
  CHECK(refusal(llama(), {{"", "2"}}).starts_with("--set"));
}

TEST_CASE("config_reader: an override with a bad value is refused like a bad entry") {
  CHECK(refusal(llama(), {{"num_key_value_heads", "4"}}).find("divisor of the 6") !=
        std::string::npos);
  CHECK(refusal(llama(), {{"hidden_size", "big"}}).find("got \"big\"") != std::string::npos);
  CHECK(refusal(llama(), {{"hidden_size", ""}}).find("hidden_size: ") != std::string::npos);
  CHECK(refusal(llama(), {{"hidden_size", "null"}}).find("missing") != std::string::npos);
}

TEST_CASE("config: the forms of a checkpoint converted for slim attention") {
  const std::string file = std::string(KVCAST_SOURCE_DIR) + "/data/models/whisper-tiny.json";
  const auto error = [&](const char* slim) {
    json config = read_json_file(file);
    config["kvcast_slim"] = json::parse(slim);
    return message_of([&] { read_config(config, "tiny", file); });
  };
  const auto contains = [](const std::string& text, const char* part) { check_line(text, {part}); };
  CHECK(error(R"({"self": ["kcache", "vcache", "xcache", "plain"],
                  "cross": ["hybrid", "hybrid", "kcache", "hybrid"]})") == "(no Error was thrown)");
  contains(error(R"({"self": ["plain"], "cross": []})"), "a list of 4 forms, one a layer");
  contains(error(R"({"self": ["plain", "plain", "plain", "plain"]})"), "cross");
  contains(error(R"({"self": [1, 2, 3, 4], "cross": []})"), "forms such as");
  contains(error(R"({"self": ["plain", "plain", "kcahe", "plain"], "cross": []})"), "kcache");
  contains(error(R"({"self": ["hybrid", "plain", "plain", "plain"], "cross": []})"), "layer 0");
  contains(error(R"({"self": ["plain", "plain", "plain", "plain"],
                     "cross": ["kcache", "hybrid", "plain", "plain"]})"),
           "in the first layer");
}
