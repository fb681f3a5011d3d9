#define PCRE2_CODE_UNIT_WIDTH 8

#include "model/io/text/unicode_regex.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <pcre2.h>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

constexpr std::size_t max_pattern_bytes = 16384;
constexpr std::uint32_t heap_limit_kib = 64U << 10;
/// Steps that one search may take: a run of n blanks needs a few times n, a hostile pattern more.
constexpr std::size_t least_steps = 1'000'000;
constexpr std::size_t steps_per_byte = 32;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string reason_of(int error) {
  std::array<PCRE2_UCHAR, 160> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR bytes_of(std::string_view text) {
  // PCRE2 dislikes a null subject even when its length is 0.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

/// One search after the other in one text.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text, const std::string& place)
      : code_(code),
        text_(text),
        place_(place),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (!data_ || !context_) throw Error(place_ + ": no memory for a search", Fault::Run);
    const std::size_t steps = std::max(least_steps, steps_per_byte * text.size());
    const auto limit = static_cast<std::uint32_t>(std::min<std::size_t>(steps, UINT32_MAX));
    pcre2_set_match_limit(context_.get(), limit);
    pcre2_set_depth_limit(context_.get(), limit);
    pcre2_set_heap_limit(context_.get(), heap_limit_kib);
  }

  bool find(std::size_t from, Span& match) {
    int result = run(from);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
      stack_.reset(pcre2_jit_stack_create(32U << 10, 8U << 20, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      result = run(from);
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw Error(place_ + ": a pattern gave up on a text of " + std::to_string(text_.size()) +
                  " bytes: " + reason_of(result));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    // A lookbehind with \K could put the start behind the end; the dialect has no \K.
    match = {ends[0], std::max(ends[0], ends[1])};
    return true;
  }

 private:
  int run(std::size_t from) {
    return pcre2_match(code_, bytes_of(text_), text_.size(), from, PCRE2_NO_UTF_CHECK, data_.get(),
                       context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  const std::string& place_;
  MatchData data_;
  MatchContext context_;
  JitStack stack_;
};

}  // namespace

struct UnicodeRegex::Compiled {
  Code code;
};

UnicodeRegex::UnicodeRegex(const std::string& pattern, std::string place)
    : place_(std::move(place)) {
  if (pattern.size() > max_pattern_bytes) {
    throw Error(place_, "a pattern of " + std::to_string(pattern.size()) + " bytes",
                "at most " + std::to_string(max_pattern_bytes));
  }
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw Error(place_ + ": no memory for a pattern", Fault::Run);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(bytes_of(pattern), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                          &offset, context.get()));
  if (!code) {
    throw Error(place_,
                "a pattern that is wrong at offset " + std::to_string(offset) + " (" +
                    reason_of(error) + ")",
                "a regular expression");
  }
  // Where the machine has no JIT, matching is slower and gives the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_shared<const Compiled>(Compiled{std::move(code)});
}

void UnicodeRegex::find_all(std::string_view text, std::vector<Span>& matches) const {
  Search search(compiled_->code.get(), text, place_);
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
  return Search(compiled_->code.get(), text, place_).find(0, match);
}

}  // namespace kvcast::text
