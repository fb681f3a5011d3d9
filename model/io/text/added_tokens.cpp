#include "model/io/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/io/text/unicode_regex.h"

namespace kvcast::text {
namespace {

constexpr std::size_t max_added_token_bytes = 1024;

std::uint64_t edge(std::uint32_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

bool is_word_character(std::string_view character) {
  // The \w of Unicode TS 18, which has joiners and lacks Oniguruma's signs of Latin-1.
  static const UnicodeRegex word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])",
                                 "word characters");
  return word.matches_somewhere(character);
}

bool stands_alone(std::string_view text, Span span) {
  const std::string_view before = text.substr(0, span.begin);
  const std::string_view after = text.substr(span.end);
  return (before.empty() || !is_word_character(last_character(before))) &&
         (after.empty() || !is_word_character(after.substr(0, first_character(after).length)));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<const AddedToken*> tokens,
                                   const std::vector<std::string>& patterns, std::string_view place)
    : tokens_(std::move(tokens)), ends_(1, nullptr) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& pattern = patterns[i];
    if (pattern.empty()) continue;
    if (pattern.size() > max_added_token_bytes) {
      throw Error(place, "a token of " + std::to_string(pattern.size()) + " bytes",
                  "at most " + std::to_string(max_added_token_bytes));
    }
    starts_[static_cast<unsigned char>(pattern.front())] = true;
    std::uint32_t node = 0;
    for (const char byte : pattern) {
      const auto [child, is_new] =
          children_.try_emplace(edge(node, byte), static_cast<std::uint32_t>(ends_.size()));
      if (is_new) ends_.push_back(nullptr);
      node = child->second;
    }
    if (ends_[node] == nullptr) ends_[node] = tokens_[i];
  }
}

bool AddedTokenFinder::find(std::string_view text, std::size_t from, TextPart& found) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::uint32_t node = 0;
    const AddedToken* longest = nullptr;
    for (std::size_t i = begin; i < text.size(); ++i) {
      const auto child = children_.find(edge(node, text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (ends_[node] == nullptr) continue;
      longest = ends_[node];
      found = {{begin, i + 1}, longest};
    }
    if (longest != nullptr) return true;
  }
  return false;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;
  TextPart found;
  for (std::size_t from = 0; find(text, from, found); from = found.span.end) {
    Span span = found.span;
    if (found.token->single_word && !stands_alone(text, span)) continue;
    if (found.token->lstrip) {
      const std::size_t begin = without_trailing_space(text.substr(0, span.begin)).size();
      span.begin = std::max(begin, done);
    }
    if (found.token->rstrip) {
      span.end = text.size() - without_leading_space(text.substr(span.end)).size();
    }
    // A token inside white space that the token before it took still adds its id.
    if (done < span.begin) parts.push_back({{done, span.begin}, nullptr});
    parts.push_back({span, found.token});
    done = span.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

}  // namespace kvcast::text
