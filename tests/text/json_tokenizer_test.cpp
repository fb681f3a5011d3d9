#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/text/tokenizer.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::text;
using nlohmann::json;

namespace {

/// a, b, c, a blank and <unk>, with the merges ab and abc.
json small() {
  return json::parse(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>",
              "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, " ": 4, "ab": 5, "abc": 6},
              "merges": ["a b", ["ab", "c"]]}})");
}

Tokenizer load(const json& document) { return Tokenizer::from_json(document.dump(), "t.json"); }

std::vector<TokenId> encoded(const json& document, const std::string& text) {
  return load(document).encode(text);
}

json with(const char* pointer, const json& value) {
  json document = small();
  document[json::json_pointer(pointer)] = value;
  return document;
}

struct BadFile {
  const char* pointer;
  const char* value;
  const char* message;
};

}  // namespace

TEST_CASE("json_tokenizer: merges join by rank") {
  CHECK(encoded(small(), "abcab c") == std::vector<TokenId>{6, 5, 4, 3});
}

TEST_CASE("json_tokenizer: of equal merges the left one goes first") {
  json document = small();
  document["model"]["vocab"] = {{"<unk>", 0}, {"a", 1}, {"aa", 2}};
  document["model"]["merges"] = {"a a"};
  CHECK(encoded(document, "aaa") == std::vector<TokenId>{2, 1});
}

TEST_CASE("json_tokenizer: unknown characters become one token each, or one together") {
  CHECK(encoded(small(), "a??b") == std::vector<TokenId>{1, 0, 0, 2});
  CHECK(encoded(with("/model/fuse_unk", true), "a??b") == std::vector<TokenId>{1, 0, 2});
  CHECK(encoded(with("/model/unk_token", nullptr), "a??b") == std::vector<TokenId>{5});
}

TEST_CASE("json_tokenizer: a word that is a token needs no merges when they are ignored") {
  json document = with("/model/ignore_merges", true);
  document["model"]["merges"] = json::array();
  CHECK(encoded(document, "abc") == std::vector<TokenId>{6});
  document["model"]["ignore_merges"] = false;
  CHECK(encoded(document, "abc") == std::vector<TokenId>{1, 2, 3});
}

TEST_CASE("json_tokenizer: bytes stand for characters when all of a character's have tokens") {
  json document = with("/model/byte_fallback", true);
  document["model"]["vocab"]["<0xC3>"] = 7;
  document["model"]["vocab"]["<0xA9>"] = 8;
  document["decoder"] = {{"type", "ByteFallback"}};
  CHECK(encoded(document, "a\u00E9\u00E8") == std::vector<TokenId>{1, 7, 8, 0});
  const Tokenizer tokenizer = load(document);
  CHECK(tokenizer.decode(std::vector<TokenId>{1, 7, 8}) == "a\u00E9");
  // One U+FFFD for each byte of a run that is no text, as in Hugging Face's tokenizers.
  CHECK(tokenizer.decode(std::vector<TokenId>{7, 8, 7, 2}) == "\uFFFD\uFFFD\uFFFDb");
}

TEST_CASE("json_tokenizer: added tokens take white space or stand alone as they say") {
  const json added = {{"id", 7}, {"content", "<m>"}, {"special", true}, {"normalized", false}};
  json document = with("/added_tokens", json::array({added}));
  CHECK(encoded(document, "a <m> b") == std::vector<TokenId>{1, 4, 7, 4, 2});
  document["added_tokens"][0]["lstrip"] = true;
  CHECK(encoded(document, "a  <m> b") == std::vector<TokenId>{1, 7, 4, 2});
  document["added_tokens"][0]["rstrip"] = true;
  CHECK(encoded(document, "a <m>  b") == std::vector<TokenId>{1, 7, 2});
  document["added_tokens"][0]["content"] = "b";
  document["added_tokens"][0]["id"] = 2;
  document["added_tokens"][0]["single_word"] = true;
  CHECK(encoded(document, "ab b") == std::vector<TokenId>{5, 2});
}

TEST_CASE("json_tokenizer: the longest of two added tokens is found") {
  const json document =
      with("/added_tokens",
           json::array({{{"id", 7}, {"content", "<m>"}}, {{"id", 8}, {"content", "<m>>"}}}));
  CHECK(encoded(document, "<m>><m>") == std::vector<TokenId>{8, 7});
}

TEST_CASE("json_tokenizer: a file is refused in one line that names the place") {
  const std::vector<BadFile> files = {
      {"/model/type", R"("WordPiece")", "t.json: /model/type: got 'WordPiece'"},
      {"/model/vocab/x", "5", "t.json: /model/vocab: got 'ab' and 'x' for id 5"},
      {"/model/vocab/x", "4000000000", "t.json: /model/vocab: got id 4000000000"},
      {"/model/vocab/x", "-1", "t.json: /model/vocab: got -1"},
      {"/model/vocab/x", R"("1")", "t.json: /model/vocab: got \"1\""},
      {"/model/merges/0", R"("a")", "t.json: /model/merges/0: got \"a\", expected two tokens"},
      {"/model/merges/0", R"("a x")", "t.json: /model/merges/0: got 'x'"},
      {"/model/merges/1", R"(["b", "c"])", "t.json: /model/merges/1: got 'bc'"},
      {"/model/merges/1", R"([1, 2])", "t.json: /model/merges/1: got [1,2]"},
      {"/model/unk_token", R"("<pad>")", "t.json: /model/unk_token: got \"<pad>\""},
      {"/model/dropout", "0.1", "t.json: /model/dropout"},
      {"/model/end_of_word_suffix", R"("</w>")", "t.json: /model/end_of_word_suffix"},
      {"/model/surprise", "1", "t.json: /model: unknown key 'surprise'"},
      {"/normalizer", R"({"type": "Nmt"})", "t.json: /normalizer: unknown type 'Nmt'"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Precompiled"}]})",
       "t.json: /normalizer/normalizers/0: unknown type 'Precompiled'"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})",
       "t.json: /pre_tokenizer: unknown type 'BertPreTokenizer'"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})",
       "t.json: /pre_tokenizer/pattern: got a pattern that is wrong (end pattern with unmatched "
       "parenthesis)"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolate"})",
       "t.json: /pre_tokenizer/behavior: unknown value 'Isolate'; did you mean 'Isolated'?"},
      {"/decoder", R"({"type": "WordPiece"})", "t.json: /decoder: unknown type 'WordPiece'"},
      {"/decoder",
       R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
       "t.json: /decoder/decoders/1: got 'ByteFallback' after 'Fuse'"},
      {"/post_processor", R"({"type": "RobertaProcessing", "cls": ["<s>", 9], "sep": ["</s>", 2]})",
       "t.json: /post_processor: got id 9, expected ids below 7"},
      {"/added_tokens", R"([{"id": 3, "content": "a"}])", "t.json: /added_tokens: got 'a' as 3"},
      {"/added_tokens", R"([{"content": "<m>"}])", "t.json: /added_tokens/0/id: missing"},
  };
  for (const BadFile& file : files) {
    CAPTURE(file.pointer);
    CAPTURE(file.value);
    const std::string message =
        message_of([&] { load(with(file.pointer, json::parse(file.value))); });
    CHECK_MESSAGE(message.starts_with(file.message), message);
  }
}

TEST_CASE("json_tokenizer: a pattern that would run forever is stopped") {
  const json pre_tokenizer = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a|aa|aaa)+[xy]"}}}, {"behavior", "Isolated"}};
  const Tokenizer tokenizer = load(with("/pre_tokenizer", pre_tokenizer));
  const std::string message = message_of([&] { tokenizer.encode(std::string(3001, 'a')); });
  CHECK_MESSAGE(message.find("gave up on a text of 3001 bytes") != std::string::npos, message);
}
