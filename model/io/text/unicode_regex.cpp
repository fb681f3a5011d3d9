#include "model/io/text/unicode_regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <oniguruma.h>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

constexpr std::size_t max_pattern_bytes = 16384;
/// Backtracking steps of one search: a run of n blanks needs a few times n, a hostile pattern more.
constexpr std::size_t least_retries = 1'000'000;
constexpr std::size_t retries_per_byte = 32;
/// Entries of the backtracking stack, 40 bytes each: every letter of a word is one.
constexpr std::size_t least_stack = 1'000'000;
constexpr std::size_t stack_per_byte = 4;

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeLimits {
  void operator()(OnigMatchParam* limits) const { onig_free_match_param(limits); }
};

/// One printable line: Oniguruma may quote the pattern in its message.
std::string reason_of(int error, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = onig_error_code_to_str(buffer.data(), error, info);
  std::string reason(buffer.data(), buffer.data() + length);
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return reason;
}

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.empty() ? "" : text.data());
}

/// One search after the other in one text.
class Search {
 public:
  Search(OnigRegex code, std::string_view text, const std::string& place)
      : code_(code),
        text_(text),
        place_(place),
        region_(onig_region_new()),
        limits_(onig_new_match_param()) {
    if (!region_ || !limits_) throw Error(place_ + ": no memory for a search", Fault::Run);
    const auto limit = [&text](std::size_t least, std::size_t per_byte) {
      return static_cast<unsigned>(
          std::min<std::size_t>(std::max(least, per_byte * text.size()), UINT32_MAX));
    };
    const unsigned retries = limit(least_retries, retries_per_byte);
    onig_set_retry_limit_in_match_of_match_param(limits_.get(), retries);
    onig_set_retry_limit_in_search_of_match_param(limits_.get(), retries);
    onig_set_match_stack_limit_size_of_match_param(limits_.get(),
                                                   limit(least_stack, stack_per_byte));
  }

  bool find(std::size_t from, Span& match) {
    const OnigUChar* begin = bytes_of(text_);
    const OnigUChar* end = begin + text_.size();
    const int result = onig_search_with_param(code_, begin, end, begin + from, end, region_.get(),
                                              ONIG_OPTION_NONE, limits_.get());
    if (result == ONIG_MISMATCH) return false;
    if (result < 0) {
      throw Error(place_ + ": a pattern gave up on a text of " + std::to_string(text_.size()) +
                  " bytes: " + reason_of(result, nullptr));
    }
    const auto match_end = static_cast<std::size_t>(region_->end[0]);
    // With \K in a lookaround a match may begin outside of what was searched.
    match = {
        std::clamp(static_cast<std::size_t>(region_->beg[0]), std::min(from, match_end), match_end),
        match_end};
    return true;
  }

 private:
  OnigRegex code_;
  std::string_view text_;
  const std::string& place_;
  std::unique_ptr<OnigRegion, FreeRegion> region_;
  std::unique_ptr<OnigMatchParam, FreeLimits> limits_;
};

}  // namespace

UnicodeRegex::UnicodeRegex(std::string_view pattern, std::string place, Syntax syntax)
    : place_(std::move(place)) {
  if (pattern.size() > max_pattern_bytes) {
    throw Error(place_, "a pattern of " + std::to_string(pattern.size()) + " bytes",
                "at most " + std::to_string(max_pattern_bytes));
  }
  static const int started = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  KVCAST_ASSERT(started == ONIG_NORMAL);
  OnigRegex code = nullptr;
  OnigErrorInfo info{};
  const int error = onig_new(&code, bytes_of(pattern), bytes_of(pattern) + pattern.size(),
                             ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                             syntax == Syntax::Text ? ONIG_SYNTAX_ASIS : ONIG_SYNTAX_RUBY, &info);
  if (error != ONIG_NORMAL) {
    throw Error(place_, "a pattern that is wrong (" + reason_of(error, &info) + ")",
                "a regular expression");
  }
  code_ = {code, onig_free};
}

void UnicodeRegex::find_all(std::string_view text, std::vector<Span>& matches) const {
  Search search(code_.get(), text, place_);
  std::size_t from = 0;
  std::size_t last_end = std::string_view::npos;
  Span match;
  while (from <= text.size() && search.find(from, match)) {
    const bool is_empty = match.begin == match.end;
    if (!is_empty || match.end != last_end) matches.push_back(match);
    last_end = match.end;
    from = match.end;
    if (is_empty) from += from < text.size() ? first_character(text.substr(from)).length : 1;
  }
}

bool UnicodeRegex::matches_somewhere(std::string_view text) const {
  Span match;
  return Search(code_.get(), text, place_).find(0, match);
}

}  // namespace kvcast::text
