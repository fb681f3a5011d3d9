#include "model/io/text/unicode_regex.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"

using namespace kvcast;
using namespace kvcast::text;

namespace {

/// The matches of a pattern, by their text.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<Span> spans;
  UnicodeRegex(pattern, "p").find_all(text, spans);
  std::vector<std::string> found;
  for (const Span span : spans) found.emplace_back(slice(text, span));
  return found;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("unicode_regex: white space is the Unicode property") {
  // U+180E was white space before Unicode 6.3.
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

TEST_CASE("unicode_regex: what other libraries read otherwise is read as Oniguruma does") {
  CHECK(matches(R"([\u4e00-\u9fff]+)", "a\u4E2D\u6587b") == Texts{"\u4E2D\u6587"});
  CHECK(matches("a{,2}b", "aaab") == Texts{"aab"});
  CHECK(matches("[a[bc]]+", "xabcx[") == Texts{"abc"});
  CHECK(matches("a{x", "a{x") == Texts{"a{x"});
  // U+3001 is used with Han but is not of that script.
  CHECK(matches(R"(\p{Han}+)", "\u4E2D\u3001") == Texts{"\u4E2D"});
  CHECK(matches("[a-c&&[^b]]+", "abc") == Texts{"a", "c"});
  CHECK(matches("(?m:a.b)", "a\nb") == Texts{"a\nb"});    // Ruby's m: a dot takes newlines
  CHECK(matches("a{1,2}+x", "aaaax") == Texts{"aaaax"});  // a{1,2}, one time or more
  CHECK(matches(R"(\h+)", "xfez") == Texts{"fe"});        // hexadecimal digits
  CHECK(matches(R"(a\Kb)", "ab") == Texts{"b"});
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

TEST_CASE("unicode_regex: a match that begins outside of what was searched is cut to it") {
  CHECK(matches(R"(a|(?<=\Ka)b)", "ab") == Texts{"a", "b"});
  CHECK(matches(R"(a(?=b\K))", "ab") == Texts{""});
}

TEST_CASE("unicode_regex: a wrong pattern is refused in one line") {
  for (const char* pattern : {"(a", "[a", "(?R)", "(?C1)", R"(\p{x\ny})", R"(\u12)", R"(\xC3)",
                              R"([\xC3]|x)", "\\", "\xC3", "(?<a>\\g<a>b)", "*a"}) {
    CAPTURE(std::string(pattern));
    const std::string line = message_of([&] { UnicodeRegex(pattern, "here"); });
    CHECK(line.starts_with("here: got a pattern that is wrong ("));
    CHECK(line.find('\n') == std::string::npos);
  }
  CHECK(message_of([] { UnicodeRegex(std::string(20000, 'a'), "here"); }).starts_with("here: got"));
  CHECK(message_of([] { UnicodeRegex(std::string(16000, '('), "here"); }).starts_with("here: got"));
}

TEST_CASE("unicode_regex: a hostile pattern gives up, or ends") {
  for (const char* pattern :
       {"(a|aa|aaa)+[xy]", "(a*)*x", "(?:a?){400}a{400}x", "(?:(?:a+)+)+x", R"((?<n>a\g<n>?a?)+x)",
        R"((a*)(a*)(a*)(a*)\1\2\3x)", "(?:(?:(?:a{900}){900}){900}){900}x"}) {
    CAPTURE(std::string(pattern));
    const std::string line = message_of([&] { matches(pattern, std::string(3000, 'a')); });
    CHECK((line.starts_with("p: ") || line == "(no Error was thrown)"));
  }
}

TEST_CASE("unicode_regex: a run of a million letters or blanks is one match") {
  for (const char c : {'a', ' '}) {
    const std::string run(1'000'000, c);
    CHECK(matches(R"( ?\p{L}+|\s+(?!\S)|\s+)", run) == Texts{run});
  }
}

TEST_CASE("unicode_regex: a text matches itself") {
  const std::string text = "a.b*[\\^$|?+(){}]\u00E9 #-";
  std::vector<Span> spans;
  UnicodeRegex(text, "p", UnicodeRegex::Syntax::Text).find_all(text, spans);
  REQUIRE(spans.size() == 1);
  CHECK(slice(text, spans[0]) == text);
}
