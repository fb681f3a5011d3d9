#include "model/io/text/text_normalizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "model/base/error.h"
#include "model/base/utf8_text.h"

namespace kvcast::text {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

struct Free {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

std::string step(UnicodeForm form, std::string text, bool&) {
  if (is_ascii(text)) return text;
  int options = UTF8PROC_STABLE;
  const bool composes = form == UnicodeForm::Nfc || form == UnicodeForm::Nfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::Nfkc || form == UnicodeForm::Nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* bytes = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  if (size < 0) {
    throw Error(std::string("Unicode normalization of a text failed: ") + utf8proc_errmsg(size),
                Fault::Run);
  }
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)};
}

std::string step(Lowercase, const std::string& text, bool&) {
  constexpr char32_t capital_i_with_dot = 0x130;  // the one letter whose lower case is two
  std::string lower;
  const std::string_view rest = text;
  for (std::size_t i = 0; i < rest.size(); i += first_character(rest.substr(i)).length) {
    const char32_t c = first_code_point(rest.substr(i));
    if (c == capital_i_with_dot) {
      lower += "i\xCC\x87";
    } else {
      append_code_point(lower,
                        static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

std::string step(const PrependText& prepend, const std::string& text, bool&) {
  return text.empty() ? text : prepend.text + text;
}

std::string step(const ReplaceText& replace, const std::string& text, bool& keeps_beginning) {
  std::vector<Span> matches;
  replace.pattern.find_all(text, matches);
  std::string replaced;
  std::size_t done = 0;
  for (const Span match : matches) {
    replaced += slice(text, {done, match.begin});
    replaced += replace.content;
    if (match.begin == 0 && match.end > 0 && replace.content.empty()) keeps_beginning = false;
    done = match.end;
  }
  return replaced += slice(text, {done, text.size()});
}

std::string step(StripSpace strip, const std::string& text, bool& keeps_beginning) {
  std::string_view kept = text;
  if (strip.left) kept = without_leading_space(kept);
  if (kept.size() < text.size()) keeps_beginning = false;
  if (strip.right) kept = without_trailing_space(kept);
  return std::string(kept);
}

}  // namespace

Normalized TextNormalizer::apply(std::string_view text) const {
  Normalized normalized{std::string(text)};
  for (const NormalizerStep& one : steps) {
    normalized.text = std::visit(
        [&](const auto& how) { return step(how, normalized.text, normalized.keeps_beginning); },
        one);
  }
  return normalized;
}

}  // namespace kvcast::text
