/// Regular expressions over UTF-8 text, in the dialect of tokenizer.json, run by Oniguruma.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/utf8_text.h"

struct re_pattern_buffer;  // of Oniguruma

namespace kvcast::text {

/// A compiled pattern. Copies share it, and any number of threads may search with it at the same
/// time.
class UnicodeRegex {
 public:
  /// Ruby's syntax, as Hugging Face's tokenizers read patterns, or a text that matches itself.
  enum class Syntax { Ruby, Text };

  /// Throws Error with `place` and Oniguruma's reason when the pattern is wrong or too long.
  UnicodeRegex(std::string_view pattern, std::string place, Syntax syntax = Syntax::Ruby);

  /// Appends all matches in valid UTF-8 text, from left to right. An empty match counts unless it
  /// touches the match before it. Throws Error when the pattern backtracks too often.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

  bool matches_somewhere(std::string_view text) const;

 private:
  std::shared_ptr<re_pattern_buffer> code_;
  std::string place_;
};

}  // namespace kvcast::text
