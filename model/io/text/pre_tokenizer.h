/// Cuts a text into the words that byte-pair encoding sees one by one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/io/text/unicode_regex.h"

namespace kvcast::text {

/// What becomes of the matches of a pattern; the names are those of tokenizer.json.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

struct SplitByPattern {
  UnicodeRegex pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  ///< what lies between the matches counts as a match
};

/// Writes the words in GPT-2's byte alphabet.
struct ToByteAlphabet {
  bool add_prefix_space = false;        ///< to each word that begins with no blank
  std::optional<UnicodeRegex> pattern;  ///< cuts first
};

/// Writes blanks as another character, as SentencePiece does.
struct ToMetaspace {
  enum class Prepend { First, Never, Always };
  std::string replacement;
  Prepend prepend = Prepend::Always;
  bool split = true;  ///< before each replacement
};

using PreTokenizerStep = std::variant<SplitByPattern, ToByteAlphabet, ToMetaspace>;

struct Words {
  std::string text;
  std::vector<Span> spans;
};

struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;

  /// Cuts valid UTF-8. `is_first`: the text stands at the beginning of the whole.
  Words cut(std::string text, bool is_first) const;
};

/// The pattern that GPT-2 cuts by, in Oniguruma's syntax.
/// Source   openai/gpt-2 : src/encoder.py
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace kvcast::text
