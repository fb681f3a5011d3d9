#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/text/sentencepiece_proto.h"
#include "model/io/text/tokenizer_parts.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::text;
namespace fs = std::filesystem;

namespace {

std::string content_of(const std::string& name) {
  std::ifstream file(fs::path(KVCAST_SOURCE_DIR) / "tests/text/data" / name, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

/// normalizer_spec { precompiled_charsmap: ... }
std::string with_charsmap(const std::string& map) {
  const std::string spec = "\x12" + std::string(1, static_cast<char>(map.size())) + map;
  return "\x1A" + std::string(1, static_cast<char>(spec.size())) + spec;
}

}  // namespace

TEST_CASE("sentencepiece_tokenizer: control tokens in a text are found, and begin a new one") {
  const Tokenizer tokenizer(sentencepiece_tokenizer(content_of("llama-spm.model"), "m"));
  const std::vector<TokenId> the = tokenizer.encode("the");
  std::vector<TokenId> expected = {1};
  expected.insert(expected.end(), the.begin(), the.end());
  expected.push_back(2);
  expected.insert(expected.end(), the.begin(), the.end());
  CHECK(tokenizer.encode("<s>the</s>the") == expected);
  CHECK(tokenizer.decode(expected, SpecialTokens::Keep) == "<s>the</s>the");
  CHECK(tokenizer.is_special(1));
  CHECK_FALSE(tokenizer.is_special(the[0]));
}

TEST_CASE("sentencepiece_tokenizer: a file that is cut off anywhere is refused") {
  const std::string whole = content_of("t5-spm.model");
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    try {
      sentencepiece_tokenizer(whole.substr(0, size), "m");
    } catch (const Error&) {
      ++refused;
    }
  }
  // A cut between two messages leaves a shorter model, which may be whole.
  CHECK(refused > whole.size() / 7 * 9 / 10);
}

TEST_CASE("sentencepiece_tokenizer: a character map that leads outside itself is refused") {
  const auto message = [](const std::string& map) {
    return message_of([&] { check_sentencepiece_model(with_charsmap(map), "m"); });
  };
  const std::string four("\x04\0\0\0", 4);
  CHECK(message("ab").find("a character map of 2 bytes") != std::string::npos);
  CHECK(message(std::string("\xFF\0\0\0", 4) + "abcd").find("has 255 bytes") != std::string::npos);
  CHECK(message(four + "abcd").find("without an end") != std::string::npos);
  // One unit with offset 0: byte c leads to unit c, and there is one unit.
  CHECK(message(four + std::string("\0\0\0\0\0", 5)).find("outside its trie") != std::string::npos);
}

TEST_CASE("sentencepiece_tokenizer: a model without an unknown token is refused by the library") {
  const std::string model =
      serialize_sentencepiece_bpe({{.text = "a"}, {.text = "b"}}, false, true);
  CHECK(message_of([&] { sentencepiece_tokenizer(model, "m"); }).starts_with("m: SentencePiece: "));
}
