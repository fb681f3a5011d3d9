#include "cli/frame/text_width.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace kvcast::cli {
namespace {

constexpr std::string_view sign = "...";

/// UTF-8 continues a character in bytes of 10xxxxxx.
bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

/// Where so many characters end.
std::size_t end_of(const std::string& text, std::size_t characters) {
  std::size_t end = 0;
  while (end < text.size() && (characters > 0 || !begins_character(text[end]))) {
    if (begins_character(text[end])) --characters;
    ++end;
  }
  return end;
}

/// Where a word that is too long is broken: behind its last sign, or anywhere.
std::size_t break_of(const std::string& word, std::size_t width) {
  const std::size_t end = end_of(word, width);
  const std::size_t sign_at = word.find_last_of(",|/[-_+", end - 1);
  return sign_at == std::string::npos || sign_at + 1 < end / 2 ? end : sign_at + 1;
}

}  // namespace

std::size_t text_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string shortened(const std::string& text, std::size_t width) {
  if (text_width(text) <= width) return text;
  std::string cut = text.substr(0, end_of(text, width > sign.size() ? width - sign.size() : 0));
  while (!cut.empty() && cut.back() == ' ') cut.pop_back();
  return cut + std::string(sign);
}

std::string shortened_inside(const std::string& text, std::size_t width) {
  const std::size_t characters = text_width(text);
  if (characters <= width || width <= sign.size()) return shortened(text, width);
  const std::size_t kept = width - sign.size();
  const std::size_t behind = kept / 2;
  return text.substr(0, end_of(text, kept - behind)) + std::string(sign) +
         text.substr(end_of(text, characters - behind));
}

std::vector<std::string> wrapped(const std::string& text, std::size_t width, LongWords long_words) {
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (text_width(line) + 1 + text_width(word) <= width) {
      line += " " + word;
    } else {
      lines.push_back(word);
    }
    while (long_words == LongWords::Broken && text_width(lines.back()) > width) {
      const std::size_t end = break_of(lines.back(), width);
      lines.push_back(lines.back().substr(end));
      lines[lines.size() - 2].resize(end);
    }
  }
  return lines;
}

}  // namespace kvcast::cli
