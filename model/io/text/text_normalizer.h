/// What happens to a text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/io/text/unicode_regex.h"

namespace kvcast::text {

enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };

struct Lowercase {};

/// Before a text that is not empty.
struct PrependText {
  std::string text;
};

struct ReplaceText {
  UnicodeRegex pattern;
  std::string content;
};

struct StripSpace {
  bool left = true;
  bool right = true;
};

using NormalizerStep = std::variant<UnicodeForm, Lowercase, PrependText, ReplaceText, StripSpace>;

struct Normalized {
  std::string text;
  /// False when a step took away what the text began with.
  bool keeps_beginning = true;
};

/// Steps in their order, on valid UTF-8.
struct TextNormalizer {
  std::vector<NormalizerStep> steps;

  Normalized apply(std::string_view text) const;
};

}  // namespace kvcast::text
