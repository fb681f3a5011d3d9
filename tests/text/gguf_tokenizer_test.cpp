#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sentencepiece_processor.h>

#include "model/base/json_file.h"
#include "model/io/tensors/gguf.h"
#include "model/io/text/tokenizer.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::text;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path data_folder = fs::path(KVCAST_SOURCE_DIR) / "tests/text/data";

/// What the metadata of a GGUF file say.
struct GgufVocabulary {
  std::string model;
  std::string pre{};
  std::vector<std::string> tokens{};
  std::vector<float> scores{};
  std::vector<std::int32_t> types{};
  std::vector<std::string> merges{};
  std::map<std::string, std::uint32_t> ids{{"bos", 0}, {"eos", 1}};
  std::map<std::string, bool> flags{};
};

Tokenizer tokenizer_of(const GgufVocabulary& v) {
  GgufWriter w;
  const std::string prefix = "tokenizer.ggml.";
  w.text(prefix + "model", v.model);
  w.text(prefix + "pre", v.pre);
  w.texts(prefix + "tokens", v.tokens);
  if (!v.merges.empty()) w.texts(prefix + "merges", v.merges);
  w.list(prefix + "scores", gguf_id::float32, v.scores);
  w.list(prefix + "token_type", gguf_id::int32, v.types);
  for (const auto& [name, id] : v.ids) w.whole(prefix + name + "_token_id", id);
  for (const auto& [name, flag] : v.flags) w.value(prefix + name, gguf_id::boolean, raw(flag));
  return Tokenizer::from_gguf(read_gguf(in_memory(w.bytes(), "m.gguf")));
}

/// What a converter writes into a GGUF file for a byte-level tokenizer.json.
GgufVocabulary converted(const std::string& name, const std::string& pre) {
  const json file = read_json_file(data_folder / name);
  GgufVocabulary gguf{.model = "gpt2", .pre = pre};
  const auto put = [&](const std::string& token, std::size_t id, std::int32_t type) {
    gguf.tokens.resize(std::max(gguf.tokens.size(), id + 1));
    gguf.types.resize(gguf.tokens.size(), 1);
    gguf.tokens[id] = token;
    gguf.types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) put(token, id, 1);
  for (const json& token : file["added_tokens"]) {
    put(token["content"], token["id"], token["special"] ? 3 : 4);
  }
  for (const json& merge : file["model"]["merges"]) {
    gguf.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return gguf;
}

GgufVocabulary converted_sentencepiece() {
  sentencepiece::SentencePieceProcessor model;
  REQUIRE(model.Load((data_folder / "llama-spm.model").string()).ok());
  GgufVocabulary gguf{.model = "llama", .ids = {{"bos", 1}, {"eos", 2}, {"unknown", 0}}};
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    gguf.tokens.push_back(model.IdToPiece(id));
    gguf.scores.push_back(model.GetScore(id));
    std::int32_t type = 1;
    if (model.IsUnknown(id)) type = 2;
    if (model.IsControl(id)) type = 3;
    if (model.IsByte(id)) type = 6;
    if (gguf.tokens.back().starts_with("<|")) type = 4;
    gguf.types.push_back(type);
  }
  return gguf;
}

const json& texts() {
  static const json expected = read_json_file(data_folder / "expected.json");
  return expected["texts"];
}

}  // namespace

TEST_CASE("gguf_tokenizer: byte-level vocabularies encode as the tokenizer.json they come from") {
  const std::vector<std::pair<const char*, const char*>> families = {
      {"gpt2.json", "gpt-2"},
      {"llama3.json", "llama-bpe"},
      {"smollm.json", "smollm"},
  };
  for (const auto& [name, pre] : families) {
    CAPTURE(name);
    const Tokenizer from_gguf = tokenizer_of(converted(name, pre));
    const Tokenizer from_json = Tokenizer::from_json_file(data_folder / name);
    CHECK(from_gguf.vocab_size() == from_json.vocab_size());
    for (const std::string text : texts()) {
      CAPTURE(text);
      const std::vector<TokenId> ids = from_gguf.encode(text);
      CHECK(ids == from_json.encode(text));
      CHECK(from_gguf.decode(ids) == from_json.decode(ids));
    }
  }
}

TEST_CASE("gguf_tokenizer: qwen2 cuts as its tokenizer.json does, which normalizes first") {
  const Tokenizer from_gguf = tokenizer_of(converted("qwen2.json", "qwen2"));
  const Tokenizer from_json = Tokenizer::from_json_file(data_folder / "qwen2.json");
  for (const std::string text : {"I'M 12345 tokens\n\n  ahead", "<|im_start|>the<tool>"}) {
    CHECK(from_gguf.encode(text) == from_json.encode(text));
  }
}

TEST_CASE("gguf_tokenizer: llama vocabularies encode as the SentencePiece model they come from") {
  const Tokenizer from_gguf = tokenizer_of(converted_sentencepiece());
  const Tokenizer original = Tokenizer::from_sentencepiece_file(data_folder / "llama-spm.model");
  CHECK(from_gguf.end_of_text() == std::vector<TokenId>{2});
  for (const std::string text : texts()) {
    CAPTURE(text);
    std::vector<TokenId> expected = original.encode(text);
    expected.insert(expected.begin(), 1);  // "llama" adds BOS unless the file says otherwise
    CHECK(from_gguf.encode(text) == expected);
    CHECK(from_gguf.decode(expected) == original.decode(expected));
  }
}

TEST_CASE("gguf_tokenizer: the file decides over BOS and EOS") {
  GgufVocabulary gguf = converted("gpt2.json", "llama-bpe");
  CHECK(tokenizer_of(gguf).encode("").size() == 1);
  gguf.flags = {{"add_bos_token", false}, {"add_eos_token", true}};
  CHECK(tokenizer_of(gguf).encode("") == std::vector<TokenId>{1});
  gguf.ids["eot"] = 7;
  CHECK(tokenizer_of(gguf).end_of_text() == std::vector<TokenId>{1, 7});
}

TEST_CASE("gguf_tokenizer: user-defined tokens are text, not the byte alphabet") {
  GgufVocabulary gguf = converted("gpt2.json", "gpt-2");
  const auto id = static_cast<TokenId>(gguf.tokens.size());
  gguf.tokens.push_back("\u00E9t\u00E9");
  gguf.types.push_back(4);
  const Tokenizer tokenizer = tokenizer_of(gguf);
  CHECK(tokenizer.encode("\u00E9t\u00E9") == std::vector<TokenId>{id});
  CHECK(tokenizer.decode(std::vector{id}) == "\u00E9t\u00E9");
}

TEST_CASE("gguf_tokenizer: a run of blanks can be a token of a llama vocabulary") {
  GgufVocabulary gguf = converted_sentencepiece();
  const auto id = static_cast<TokenId>(gguf.tokens.size());
  gguf.tokens.push_back("    ");
  gguf.scores.push_back(-1000);
  gguf.types.push_back(4);
  gguf.flags = {{"add_bos_token", false}, {"add_space_prefix", false}};
  const Tokenizer tokenizer = tokenizer_of(gguf);
  CHECK(tokenizer.encode("    ") == std::vector<TokenId>{id});
  CHECK(tokenizer.decode(std::vector{id}) == "    ");
}

TEST_CASE("gguf_tokenizer: with every known name a text comes back from its ids") {
  const std::string known = message_of([] { tokenizer_of(converted("gpt2.json", "klingon")); });
  std::string_view names = known;
  names.remove_prefix(names.find("one of: ") + 8);
  const std::string text = "It's 12345 TOKENS,\n\n  na\u00EFve \u65E5\u672C\u8A9E\u3001 {x}!?";
  std::size_t count = 0;
  while (!names.empty()) {
    const std::string name(names.substr(0, names.find(", ")));
    names.remove_prefix(std::min(names.size(), name.size() + 2));
    CAPTURE(name);
    const Tokenizer tokenizer = tokenizer_of(converted("gpt2.json", name));
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    ++count;
  }
  CHECK(count > 40);
}

TEST_CASE("gguf_tokenizer: wrong metadata is refused in one line") {
  const auto message = [](auto change) {
    GgufVocabulary gguf = converted("gpt2.json", "gpt-2");
    change(gguf);
    return message_of([&] { tokenizer_of(gguf); });
  };
  const std::string unknown_pre = message([](auto& gguf) { gguf.pre = "klingon"; });
  CHECK(unknown_pre.starts_with(
      "m.gguf: metadata tokenizer.ggml.pre: got 'klingon', expected one of: "));
  CHECK(unknown_pre.find("qwen2") != std::string::npos);
  CHECK(message([](auto& gguf) { gguf.model = "bert"; }).find("'gpt2' or 'llama'") !=
        std::string::npos);
  CHECK(message([](auto& gguf) { gguf.types.pop_back(); }).find("token_type") != std::string::npos);
  CHECK(message([](auto& gguf) { gguf.types[3] = 9; }).find("9 for id 3") != std::string::npos);
  CHECK(message([](auto& gguf) { gguf.ids["bos"] = 100000; }).find("bos_token_id") !=
        std::string::npos);
  CHECK(message([](auto& gguf) { gguf.merges[0] = "xy"; }).find("merges: 0") != std::string::npos);
  CHECK(message([](auto& gguf) { gguf.merges.clear(); }) ==
        "m.gguf: metadata tokenizer.ggml.merges: missing, expected an array of strings");
  CHECK(message([](auto& gguf) { gguf.tokens[9] = "\xFF"; }).find("tokens: 9") !=
        std::string::npos);
  CHECK(message([](auto& gguf) { gguf.tokens.clear(); }).find("0 tokens") != std::string::npos);
}
