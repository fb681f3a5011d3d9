/// Keys of config.json, read as transformers reads them: tests/oracle/config_keys.json.
#include <fstream>

#include <doctest/doctest.h>

#include "tests/execute/oracle.h"
#include "tests/test_folder.h"

namespace kvcast::execute {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// `change` of the case's config.json; "GONE" takes a key out.
void write_config(const fs::path& from, const json& change, const fs::path& to) {
  json config = read_json_file(from);
  for (const auto& [key, value] : change.items()) {
    if (value == "GONE") {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  std::ofstream(to) << config;
}

std::vector<float> last_logits(const Checkpoint& checkpoint, const OracleCase& c) {
  SessionOptions o;
  o.logits = Logits::Last;
  o.decoder_tokens = c.prompt[0].size();
  const Session session(checkpoint, o);
  const Generation g = session.run(c.request(c.prompt, 1));
  return {g.logits.begin(), g.logits.end()};
}

TEST_CASE("config keys: what transformers honours moves the logits as there, or is refused") {
  const TestFolder folder;
  const json table = read_json_file(oracle_folder() / "config_keys.json");
  REQUIRE(table.size() == 24);
  for (const auto& [name, rows] : table.items()) {
    const OracleCase c(name);
    fs::create_directory(folder.path() / name);
    const fs::path checkpoint = folder.path() / name;
    fs::copy(c.folder / "model.safetensors", checkpoint / "model.safetensors");
    CAPTURE(name);
    CHECK(rows.at("honoured").size() > 0);
    for (const json& row : rows.at("honoured")) {
      CAPTURE(row[0].dump());
      write_config(c.folder / "config.json", row[0], checkpoint / "config.json");
      const std::vector<float> logits = last_logits(Checkpoint(checkpoint), c);
      const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
      for (std::size_t i = 0; i < 4; ++i) {
        CHECK(std::abs(logits[i] - row[1][i].get<float>()) < 1e-4F * (*high - *low));
      }
    }
    for (const json& change : rows.at("refused")) {
      CAPTURE(change.dump());
      write_config(c.folder / "config.json", change, checkpoint / "config.json");
      CHECK_THROWS_AS(last_logits(Checkpoint(checkpoint), c), Error);
    }
  }
}

TEST_CASE("config keys: a head in the file is used, whatever tie_word_embeddings says") {
  const TestFolder folder;
  for (const std::string name : {"llama_mha", "phi3", "gpt_neox", "t5_gated"}) {
    CAPTURE(name);
    const OracleCase c(name);
    fs::copy(c.folder / "model.safetensors", folder.path() / "model.safetensors",
             fs::copy_options::overwrite_existing);
    write_config(c.folder / "config.json",
                 {{"tie_word_embeddings", true}, {"scale_decoder_outputs", false}},
                 folder.path() / "config.json");
    const Checkpoint checkpoint(folder.path());
    CHECK_FALSE(checkpoint.architecture().tied_embeddings);
    CHECK(relative_difference(last_logits(checkpoint, c), last_logits(c.checkpoint, c)) == 0);
  }
  // A copy of the embedding is no head of its own.
  CHECK(OracleCase("llama_extra_tensors").checkpoint.architecture().tied_embeddings);
}

}  // namespace
}  // namespace kvcast::execute
