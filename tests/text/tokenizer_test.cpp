#include "model/io/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

// What is expected of the tokenizers in data/ was computed by Hugging Face's tokenizers and by
// SentencePiece (make_tokenizers.py; expected.json names their versions).

using namespace kvcast;
using namespace kvcast::text;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path tokenizer_folder = fs::path(KVCAST_SOURCE_DIR) / "tests/text/data";

Tokenizer tokenizer_of(const std::string& name) {
  return name.ends_with(".json") ? Tokenizer::from_json_file(tokenizer_folder / name)
                                 : Tokenizer::from_sentencepiece_file(tokenizer_folder / name);
}

/// As make_tokenizers.py did, for SentencePiece models.
std::string without_control_tokens(std::string text) {
  for (const std::string token : {"<s>", "</s>"}) {
    for (std::size_t at = 0; (at = text.find(token)) != std::string::npos;) {
      text.erase(at, token.size());
    }
  }
  return text;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                     SpecialTokens special_tokens) {
  StreamDecoder stream(tokenizer, special_tokens);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text + stream.finish();
}

void add(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

}  // namespace

TEST_CASE("tokenizer: ids and texts are those of the reference implementations") {
  const json expected = read_json_file(tokenizer_folder / "expected.json");
  REQUIRE(expected["tokenizers"].size() == 13);
  for (const auto& [name, cases] : expected["tokenizers"].items()) {
    CAPTURE(name);
    const Tokenizer tokenizer = tokenizer_of(name);
    REQUIRE(cases.size() == expected["texts"].size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::string text = expected["texts"][i];
      if (name.ends_with(".model")) text = without_control_tokens(text);
      CAPTURE(text);
      const std::vector<TokenId> ids = cases[i]["ids"];
      CHECK(tokenizer.encode(text) == ids);
      const std::string decoded = cases[i].value("decoded", text);
      CHECK(tokenizer.decode(ids) == decoded);
      CHECK(streamed(tokenizer, ids, SpecialTokens::Skip) == decoded);
      if (name.ends_with(".model")) continue;
      const std::string with_special = cases[i].value("with_special", decoded);
      CHECK(tokenizer.decode(ids, SpecialTokens::Keep) == with_special);
      CHECK(streamed(tokenizer, ids, SpecialTokens::Keep) == with_special);
    }
  }
}

TEST_CASE("tokenizer: a stream holds bytes back until their character is whole") {
  const Tokenizer tokenizer = tokenizer_of("gpt2.json");
  const std::vector<TokenId> ids = tokenizer.encode("\U0001F600");
  REQUIRE(ids.size() == 4);  // no merge of the corpus joins its bytes
  StreamDecoder stream(tokenizer);
  CHECK(stream.push(ids[0]) == "");
  CHECK(stream.push(ids[1]) == "");
  CHECK(stream.push(ids[2]) == "");
  CHECK(stream.push(ids[3]) == "\U0001F600");
  CHECK(stream.finish() == "");
  CHECK(stream.push(ids[0]) == "");
  CHECK(stream.finish() == "\uFFFD");
}

TEST_CASE("tokenizer: a stream drops the blank before the first word only") {
  for (const char* name : {"llama2.json", "llama-spm.model", "t5-spm.model"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = tokenizer_of(name);
    const std::vector<TokenId> ids = tokenizer.encode("the token the");
    CHECK(streamed(tokenizer, ids, SpecialTokens::Skip) == "the token the");
    StreamDecoder stream(tokenizer);
    for (const TokenId id : ids) static_cast<void>(stream.push(id));
    static_cast<void>(stream.finish());
    std::string second;
    for (const TokenId id : ids) second += stream.push(id);
    CHECK(second == "the token the");
  }
}

TEST_CASE("tokenizer: text that is not UTF-8 is refused with the byte's offset") {
  const Tokenizer tokenizer = tokenizer_of("gpt2.json");
  CHECK(message_of([&] { tokenizer.encode("ab\xC3\xA9\xFFz"); }) ==
        "text to encode: got byte 0xFF at offset 4, expected UTF-8 text");
  CHECK(message_of([&] { tokenizer.encode("ab\xE2\x82"); }).find("0xE2 at offset 2") !=
        std::string::npos);
}

TEST_CASE("tokenizer: ids outside the vocabulary are refused") {
  const Tokenizer tokenizer = tokenizer_of("gpt2.json");
  const auto size = static_cast<TokenId>(tokenizer.vocab_size());
  CHECK(message_of([&] { static_cast<void>(tokenizer.decode(std::vector{size})); }) ==
        "token id: got 340, expected an id below 340, the vocabulary's size");
  StreamDecoder stream(tokenizer);
  CHECK(message_of([&] { static_cast<void>(stream.push(4000000000U)); }).starts_with("token id"));
}

TEST_CASE("tokenizer: a long word without blanks takes no quadratic time") {
  const Tokenizer tokenizer = tokenizer_of("gpt2.json");
  std::string text;
  for (std::size_t i = 0; i < 500000; ++i) text += "theother"[(i + i / 7) % 8];
  const std::vector<TokenId> ids = tokenizer.encode(text);
  CHECK(ids.size() < text.size());
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("tokenizer: tokens are found by their text") {
  const Tokenizer tokenizer = tokenizer_of("whisper.json");
  const auto start = tokenizer.id_of("<|startoftranscript|>");
  REQUIRE(start.has_value());
  CHECK(tokenizer.is_special(*start));
  CHECK(tokenizer.encode("x").front() == *start);
  CHECK_FALSE(tokenizer.is_special(tokenizer.id_of("a").value()));
  CHECK_FALSE(tokenizer.id_of("no such token").has_value());
}

TEST_CASE("tokenizer: a folder's tokenizer.json comes first, and its configs name the end") {
  const TestFolder folder;
  fs::copy_file(tokenizer_folder / "llama3.json", folder / "tokenizer.json");
  fs::copy_file(tokenizer_folder / "t5-spm.model", folder / "tokenizer.model");
  add(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  add(folder / "generation_config.json", R"({"eos_token_id": [1, 3, 1]})");
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  CHECK(tokenizer.encode("the") == tokenizer_of("llama3.json").encode("the"));
  CHECK(tokenizer.end_of_text() == std::vector<TokenId>{1, 3});
}

TEST_CASE("tokenizer: a folder's SentencePiece model begins texts as its config says") {
  const TestFolder folder;
  fs::copy_file(tokenizer_folder / "llama-spm.model", folder / "tokenizer.model");
  const std::vector<TokenId> plain = Tokenizer::from_folder(folder.path()).encode("the token");
  CHECK(plain == tokenizer_of("llama-spm.model").encode("the token"));
  add(folder / "tokenizer_config.json",
      R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"})");
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  std::vector<TokenId> with_bos = {1};
  with_bos.insert(with_bos.end(), plain.begin(), plain.end());
  CHECK(tokenizer.encode("the token") == with_bos);
  CHECK(tokenizer.end_of_text() == std::vector<TokenId>{2});
}

TEST_CASE(
    "tokenizer: a Unigram tokenizer.json takes its SentencePiece model, and its added tokens") {
  const TestFolder folder;
  fs::copy_file(tokenizer_folder / "t5-spm.model", folder / "spiece.model");
  add(folder / "tokenizer.json", R"({"model": {"type": "Unigram"},
    "added_tokens": [{"id": 300, "content": "<extra_id_0>", "special": true}],
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>"}}],
      "pair": [], "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}})");
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  std::vector<TokenId> expected = tokenizer_of("t5-spm.model").encode("the");
  expected.push_back(300);
  expected.push_back(1);
  CHECK(tokenizer.encode("the<extra_id_0>") == expected);
  CHECK(tokenizer.vocab_size() == 301);
}

TEST_CASE("tokenizer: a folder without one says what it looked for") {
  const TestFolder folder;
  const std::string message = message_of([&] { Tokenizer::from_folder(folder.path()); });
  CHECK(message.find("tokenizer.json, tokenizer.model or spiece.model") != std::string::npos);
}
