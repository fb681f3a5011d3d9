/// The regular expressions of tokenizer.json are written for Oniguruma; PCRE2 runs them.
#pragma once

#include <string>
#include <string_view>

namespace kvcast::text {

/// The characters of Oniguruma's \w, as the inside of a PCRE2 class: letters, marks, digits,
/// connectors, and six signs of Latin-1 that Oniguruma takes from its ISO 8859-1 table.
inline constexpr std::string_view word_class =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// Writes an Oniguruma (Ruby syntax) pattern so that PCRE2 with UTF, UCP and MULTILINE finds the
/// same matches: \s and \w by Unicode properties, \uHHHH, {,n}, nested classes, script names.
/// Throws Error naming the construct that has another meaning, or none, in PCRE2 (class
/// intersections, recursion, verbs, callouts, option m, ...).
/// Source   Oniguruma's doc/RE; pcre2pattern(3) of PCRE2 10.42
std::string pcre2_pattern(std::string_view oniguruma_pattern, std::string_view place);

/// A pattern that matches the text itself.
std::string quoted_pattern(std::string_view text);

}  // namespace kvcast::text
