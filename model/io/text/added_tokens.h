/// Tokens that are found in the text before it is cut into words: <s>, <|im_start|>, ...
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/base/utf8_text.h"
#include "model/io/text/vocabulary.h"

namespace kvcast::text {

/// Fields as in tokenizer.json, /added_tokens.
struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      ///< has no text of its own: decoding skips it
  bool single_word = false;  ///< not found inside a word
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool normalized = false;   ///< is searched for in the normalized text
};

/// A part of a text: an added token, or what lies between them.
struct TextPart {
  Span span;
  const AddedToken* token = nullptr;
};

/// Finds tokens: of those that match, the leftmost, and there the longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder() : ends_(1, nullptr) {}
  /// Looks for `patterns[i]` and reports `tokens[i]`. The tokens must outlive the finder. Throws
  /// Error with `place` for a pattern longer than 1024 bytes.
  AddedTokenFinder(std::vector<const AddedToken*> tokens, const std::vector<std::string>& patterns,
                   std::string_view place);

  /// The whole of a valid UTF-8 text, in parts that are not empty.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  bool find(std::string_view text, std::size_t from, TextPart& found) const;

  std::vector<const AddedToken*> tokens_;
  // A trie: a child by its parent and byte, and the token that ends at a node.
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
  std::vector<const AddedToken*> ends_;
  std::array<bool, 256> starts_{};
};

}  // namespace kvcast::text
