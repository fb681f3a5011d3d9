#include "model/io/text/regex_dialect.h"

#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// General categories by the long names that PCRE2 does not know.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> category_names = {{
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Space", "White_Space"},
    {"Punct", "P"},
}};

/// Scripts, which PCRE2 reads as Script_Extensions unless told otherwise.
constexpr std::array<std::string_view, 14> script_names = {
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Georgian", "Greek",
    "Han",    "Hangul",   "Hebrew",  "Hiragana", "Katakana",   "Latin",    "Thai"};

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view place) : in_(pattern), place_(place) {}

  std::string run() {
    while (!at_end()) {
      const char c = in_[i_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool at_end() const { return i_ >= in_.size(); }
  bool next_is(std::string_view what) const { return in_.substr(i_).starts_with(what); }

  void copy(std::size_t count) {
    out_ += in_.substr(i_, count);
    i_ += count;
  }

  void replace(std::size_t count, std::string_view by) {
    out_ += by;
    i_ += count;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(place_, std::string(what) + " at offset " + std::to_string(i_) + " of a pattern",
                "a regular expression that PCRE2 reads as Oniguruma does");
  }

  void escape(bool in_class) {
    if (i_ + 1 >= in_.size()) fail("'\\'");
    const char c = in_[i_ + 1];
    const auto word = [&](std::string_view open, std::string_view close) {
      replace(2, std::string(open) + std::string(word_class) + std::string(close));
    };
    switch (c) {
      case 's': return replace(2, R"(\p{White_Space})");
      case 'S': return replace(2, R"(\P{White_Space})");
      case 'w': return in_class ? word("", "") : word("[", "]");
      case 'W': return in_class ? fail("\\W in a class") : word("[^", "]");
      case 'b':
        if (in_class) return copy(2);
        return replace(2, at_word_edge("(?:(?<=W)(?!W)|(?<!W)(?=W))"));
      case 'B':
        if (in_class) fail("\\B in a class");
        return replace(2, at_word_edge("(?:(?<=W)(?=W)|(?<!W)(?!W))"));
      case 'p':
      case 'P': return property();
      case 'u': return code_point();
      case 'x': return hexadecimal();
      default: break;
    }
    const std::string_view same = in_class ? "tnrfvaedD" : "tnrfvaedDAzZRX123456789";
    const bool is_letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_letter && same.find(c) == std::string_view::npos) fail(std::string("\\") + c);
    copy(2);
  }

  static std::string at_word_edge(std::string_view shape) {
    std::string pattern;
    for (const char c : shape) {
      if (c == 'W') {
        pattern += '[' + std::string(word_class) + ']';
      } else {
        pattern += c;
      }
    }
    return pattern;
  }

  void property() {
    bool negated = in_[i_ + 1] == 'P';
    const std::size_t close = in_.find('}', i_);
    if (i_ + 2 >= in_.size() || in_[i_ + 2] != '{' || close == std::string_view::npos) {
      fail("\\p without {NAME}");
    }
    std::string_view name = in_.substr(i_ + 3, close - i_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string meant(name);
    for (const auto& [long_name, short_name] : category_names) {
      if (name == long_name) meant = short_name;
    }
    for (const std::string_view script : script_names) {
      if (name == script) meant = "sc:" + meant;
    }
    out_ += (negated ? "\\P{" : "\\p{") + meant + "}";
    i_ = close + 1;
  }

  void code_point() {
    std::size_t digits = 0;
    while (digits < 4 && i_ + 2 + digits < in_.size() &&
           std::isxdigit(static_cast<unsigned char>(in_[i_ + 2 + digits])) != 0) {
      ++digits;
    }
    if (digits != 4) fail("\\u without four hexadecimal digits");
    out_ += "\\x{" + std::string(in_.substr(i_ + 2, 4)) + "}";
    i_ += 6;
  }

  void hexadecimal() {
    if (i_ + 2 < in_.size() && in_[i_ + 2] == '{') return copy(3);
    const bool is_ascii = i_ + 3 < in_.size() && in_[i_ + 2] >= '0' && in_[i_ + 2] <= '7' &&
                          std::isxdigit(static_cast<unsigned char>(in_[i_ + 3])) != 0;
    if (!is_ascii) fail("\\x that is not \\x00 to \\x7F or \\x{...}");
    copy(4);
  }

  /// A class inside a class adds its characters to the outer one.
  void character_class() {
    copy(1);
    if (!at_end() && in_[i_] == '^') copy(1);
    if (!at_end() && in_[i_] == ']') copy(1);
    int depth = 1;
    while (depth > 0) {
      if (at_end()) fail("a class without ']'");
      if (in_[i_] == '\\') {
        escape(true);
      } else if (next_is("[:")) {
        const std::size_t close = in_.find(":]", i_);
        if (close == std::string_view::npos) fail("[: without :]");
        copy(close + 2 - i_);
      } else if (next_is("[^")) {
        fail("[^...] in a class");
      } else if (next_is("&&")) {
        fail("&& in a class");
      } else if (in_[i_] == '[') {
        ++depth;
        ++i_;
      } else if (in_[i_] == ']') {
        --depth;
        depth == 0 ? copy(1) : replace(1, "");
      } else {
        copy(1);
      }
    }
  }

  void group() {
    if (next_is("(*")) fail("(*");
    if (!next_is("(?")) return copy(1);
    for (const std::string_view same : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (next_is(same)) return copy(same.size());
    }
    std::size_t end = i_ + 2;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == '-')) ++end;
    if (end == i_ + 2 || end >= in_.size() || (in_[end] != ':' && in_[end] != ')')) {
      fail("a group '" + std::string(in_.substr(i_, 4)) + "'");
    }
    copy(end + 1 - i_);
  }

  void interval() {
    std::size_t end = i_ + 1;
    while (end < in_.size() && (is_digit(in_[end]) || in_[end] == ',')) ++end;
    const bool is_interval = end > i_ + 1 && end < in_.size() && in_[end] == '}';
    if (!is_interval) return replace(1, "\\{");
    if (next_is("{,")) {
      out_ += "{0";
      ++i_;
    }
    copy(end + 1 - i_);
    if (!at_end() && in_[i_] == '+') fail("{...}+, which PCRE2 reads as possessive");
  }

  std::string_view in_;
  std::string_view place_;
  std::size_t i_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view oniguruma_pattern, std::string_view place) {
  return Translation(oniguruma_pattern, place).run();
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = static_cast<unsigned char>(c) >= 0x80 ||
                          std::isalnum(static_cast<unsigned char>(c)) != 0 || c < 0x20;
    if (!is_plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace kvcast::text
