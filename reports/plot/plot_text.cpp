#include "reports/plot/plot_text.h"

#include <algorithm>
#include <cctype>

namespace kvcast::reports {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// The bytes of the UTF-8 sequence that starts the text; 0 if none does.
std::size_t sequence_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t n = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (n == 0 || lead > 0xF4 || text.size() < n) return 0;
  return std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(n),
                     is_continuation)
             ? n
             : 0;
}

}  // namespace

std::size_t num_characters(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return !is_continuation(c); }));
}

std::string printable(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t n = sequence_bytes(text);
    const bool control = n == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7F);
    if (n == 0) {
      clean += "\uFFFD";
    } else {
      clean += control ? " " : text.substr(0, n);
    }
    text.remove_prefix(std::max<std::size_t>(n, 1));
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
