#include "reports/plot/plot_text.h"

#include <algorithm>
#include <cctype>

#include "model/base/utf8_text.h"

namespace kvcast::reports {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::size_t num_characters(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return !is_continuation(c); }));
}

std::string printable(std::string_view raw) {
  std::string clean;
  while (!raw.empty()) {
    const auto [form, length] = text::first_character(raw);
    const bool whole = form == text::Utf8Character::Form::Whole;
    const bool control =
        length == 1 && (static_cast<unsigned char>(raw[0]) < 0x20 || raw[0] == 0x7F);
    if (!whole) {
      clean += "\uFFFD";
    } else {
      clean += control ? " " : raw.substr(0, length);
    }
    raw.remove_prefix(whole ? length : 1);
  }
  return clean;
}

std::string shortened(const std::string& text, std::size_t columns) {
  if (num_characters(text) <= columns) return text;
  std::size_t end = 0;
  for (std::size_t n = 0; n < columns; ++end) n += is_continuation(text[end]) ? 0U : 1U;
  return text.substr(0, end - 1) + "…";
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t blank = std::min(text.find(' ', begin), text.size());
    const std::string word = shortened(text.substr(begin, blank - begin), columns);
    begin = blank + 1;
    if (word.empty()) continue;
    if (!lines.empty() && num_characters(lines.back()) + 1 + num_characters(word) <= columns) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::string literal(std::string_view text) {
  std::string q = "'";
  for (const char c : printable(text)) q += c == '\'' ? std::string("''") : std::string(1, c);
  return q + "'";
}

std::string file_literal(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  const bool plain = std::isalnum(static_cast<unsigned char>(name[0])) != 0;
  return literal(plain ? name : "./" + name);
}

}  // namespace kvcast::reports
