/// Regular expressions over UTF-8 text, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/text/utf8_text.h"

namespace kvcast::text {

/// A compiled PCRE2 pattern with the options UTF, UCP and MULTILINE. Copies share it, and any
/// number of threads may search with it at the same time.
class UnicodeRegex {
 public:
  /// Throws Error with `place` and PCRE2's reason when the pattern is wrong or too long.
  UnicodeRegex(const std::string& pattern, std::string place);

  /// Appends all matches in valid UTF-8 text, from left to right. An empty match counts unless it
  /// touches the match before it. Throws Error when the pattern needs too many steps.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

  bool matches_somewhere(std::string_view text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::string place_;
};

}  // namespace kvcast::text
