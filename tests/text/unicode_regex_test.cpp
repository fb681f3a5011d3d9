#include "model/io/text/unicode_regex.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/text/regex_dialect.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::text;

namespace {

/// The matches of an Oniguruma pattern, by their text.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<Span> spans;
  UnicodeRegex(pcre2_pattern(pattern, "p"), "p").find_all(text, spans);
  std::vector<std::string> found;
  for (const Span span : spans) found.emplace_back(slice(text, span));
  return found;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("unicode_regex: white space is the Unicode property") {
  // U+180E was white space before Unicode 6.3, and PCRE2's own \s still takes it.
  CHECK(matches(R"(\s)", "a\u0085b\u2028c\u180Ed\u00A0") == Texts{"\u0085", "\u2028", "\u00A0"});
  CHECK(matches(R"([^\S\n]+)", " \n\t") == Texts{" ", "\t"});
}

TEST_CASE("unicode_regex: word characters are Oniguruma's") {
  CHECK(matches(R"(\w+)", "a_\u00E9\u0301x\u00B2 \u2460") == Texts{"a_\u00E9\u0301x\u00B2"});
  CHECK(matches(R"(\bb)", "ab b-b") == Texts{"b", "b"});
}

TEST_CASE("unicode_regex: case folds over Unicode") {
  CHECK(matches("(?i:'s|'k)", "'\u017F 'S '\u212A") == Texts{"'\u017F", "'S", "'\u212A"});
}

TEST_CASE("unicode_regex: lines end at a newline only, and anchors see every line") {
  CHECK(matches("^a|b$", "ab\nab") == Texts{"a", "b", "a", "b"});
  CHECK(matches(".+", "a\rb\nc") == Texts{"a\rb", "c"});
}

TEST_CASE("unicode_regex: what Oniguruma writes otherwise is translated") {
  CHECK(matches(R"([\u4e00-\u9fff]+)", "a\u4E2D\u6587b") == Texts{"\u4E2D\u6587"});
  CHECK(matches("a{,2}b", "aaab") == Texts{"aab"});
  CHECK(matches("[a[bc]]+", "xabcx[") == Texts{"abc"});
  CHECK(matches("a{x", "a{x") == Texts{"a{x"});
  // U+3001 is used with Han but is not of that script.
  CHECK(matches(R"(\p{Han}+)", "\u4E2D\u3001") == Texts{"\u4E2D"});
}

TEST_CASE("unicode_regex: an empty match counts unless it touches the one before") {
  std::vector<Span> spans;
  UnicodeRegex("x*", "p").find_all("a\u00E9xx", spans);
  REQUIRE(spans.size() == 3);
  CHECK(spans[1].begin == 1);
  CHECK(spans[1].end == 1);
  CHECK(spans[2].begin == 3);
  CHECK(spans[2].end == 5);
}

TEST_CASE("unicode_regex: what PCRE2 reads otherwise is refused") {
  for (const char* pattern :
       {"[a&&b]", "[a[^b]]", "(?m:a)", "(?R)", "(*UTF)a", R"(\h)", R"(\Qa\E)", R"(\K)", "a{1,2}+",
        "(?C1)", "[a", R"(\p)", R"(\u12)", R"(\xFF)", "\\"}) {
    CAPTURE(pattern);
    CHECK(message_of([&] { pcre2_pattern(pattern, "here"); }).starts_with("here: got "));
  }
  CHECK(message_of([] { UnicodeRegex("(a", "here"); }).starts_with("here: got a pattern"));
  CHECK(message_of([] { UnicodeRegex(std::string(20000, 'a'), "here"); }).starts_with("here: got"));
}

TEST_CASE("unicode_regex: a quoted text matches itself") {
  const std::string text = "a.b*[\\^$|?+(){}]\u00E9 #-";
  CHECK(matches(quoted_pattern(text), "x" + text) == Texts{text});
}
