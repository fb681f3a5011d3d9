#include "model/base/error.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace kvcast;

namespace {

const std::vector<std::string> hardware{"a100-40gb", "a100-80gb", "h100-sxm", "h200"};

}  // namespace

TEST_CASE("error: the message is where, what was found and what would be right") {
  const Error e("h100.json: /memory/bandwidth", "3350", "a quantity with a unit");
  CHECK(std::string(e.what()) ==
        "h100.json: /memory/bandwidth: got 3350, expected a quantity with a unit");
  CHECK(e.fault() == Fault::Request);
  CHECK(Error("the disk is full", Fault::Run).fault() == Fault::Run);
}

TEST_CASE("error: a control character from a file never breaks the line in two") {
  // A JSON string or a shell argument may hold one; a message is one line (STYLE.md, section 6).
  CHECK(std::string(Error("a\nb", "c\nd", "e").what()).find('\n') == std::string::npos);
  CHECK(std::string(unknown_name("model", "lla\nma", hardware).what()).find('\n') ==
        std::string::npos);
}

TEST_CASE("error: nearest finds the candidate with the fewest edits") {
  CHECK(nearest("h100-sxn", hardware) == "h100-sxm");    // one substitution
  CHECK(nearest("h100sxm", hardware) == "h100-sxm");     // one insertion
  CHECK(nearest("h100--sxm", hardware) == "h100-sxm");   // one deletion
  CHECK(nearest("a100-90gb", hardware) == "a100-40gb");  // a tie: the first of the two
  CHECK(nearest("h200", hardware) == "h200");
  CHECK(nearest("hx", {"h1", "hxyz", "hxy"}) == "h1");  // 1 edit each: the first
}

TEST_CASE("error: nearest gives no answer when none was meant") {
  CHECK(nearest("epyc-genoa", hardware).empty());
  CHECK(nearest("anything", {}).empty());
  // At most a third of a long word, or two letters of a short one, may be wrong.
  CHECK(nearest("abcdef", {"abcdxx"}) == "abcdxx");           // 2 edits of 6 letters
  CHECK(nearest("abcdef", {"abcxxx"}).empty());               // 3 edits of 6
  CHECK(nearest("abcdefghi", {"abcdefxxx"}) == "abcdefxxx");  // 3 of 9
}

TEST_CASE("error: nearest does not offer a word that shares no letter") {
  // Two edits turn "x" into "t5": replacing everything is no likeness.
  CHECK(nearest("x", {"t5", "opt"}).empty());
  CHECK(nearest("", {"t5", "opt"}).empty());
}

TEST_CASE("error: an unknown name is answered with its neighbour, else with all candidates") {
  CHECK(std::string(unknown_name("hardware", "h100-sxn", hardware).what()) ==
        "unknown hardware 'h100-sxn'; did you mean 'h100-sxm'?");
  CHECK(std::string(unknown_name("hardware", "h300", hardware).what()) ==
        "unknown hardware 'h300'; did you mean 'h200' or 'h100-sxm'?");
  CHECK(std::string(unknown_name("hardware", "epyc-genoa", hardware).what()) ==
        "unknown hardware 'epyc-genoa'; expected one of: a100-40gb, a100-80gb, h100-sxm, h200");
}

TEST_CASE("error: the relatives of a word share its longest known beginning, nearest first") {
  const std::vector<std::string> models = {"gpt2",          "llama-2-70b", "llama-4-maverick",
                                           "llama-4-scout", "qwen3-14b",   "qwen3-8b"};
  // "qwen3-" is shared with two; "7b" is one letter from "8b" and two from "14b".
  CHECK(relatives("qwen3-7b", models) == std::vector<std::string>{"qwen3-8b", "qwen3-14b"});
  CHECK(relatives("QWEN3-7B", models) == std::vector<std::string>{"qwen3-8b", "qwen3-14b"});
  // "llama-4-" beats the shorter "llama-", of which llama-2-70b is nearer by spelling.
  CHECK(relatives("llama-4-70b", models) ==
        std::vector<std::string>{"llama-4-scout", "llama-4-maverick"});
  CHECK(relatives("llama", models).size() == 3);
  CHECK(relatives("llama-70b", models) == std::vector<std::string>{"llama-2-70b"});
  CHECK(relatives("qwen3-8b-gguf", models) == std::vector<std::string>{"qwen3-8b"});
  // "table-3" continues the word further than "table", a whole name though it is.
  CHECK(relatives("table-33", {"table", "table-3"}) == std::vector<std::string>{"table-3"});
  // All first letters are shared, or it is another family: "gpu" is not "gpt2".
  CHECK(relatives("gpu-3", models).empty());
  CHECK(relatives("", models).empty());
  CHECK(relatives("7b", models).empty());
}

TEST_CASE("error: another number is answered with the family, a misspelling with its neighbour") {
  CHECK(did_you_mean("h100-sxn", hardware) == "did you mean 'h100-sxm'?");
  // h200 is one digit away, but no misspelling of h300.
  CHECK(did_you_mean("h300", hardware) == "did you mean 'h200' or 'h100-sxm'?");
  CHECK(did_you_mean("a100-60gb", hardware) == "did you mean 'a100-40gb' or 'a100-80gb'?");
  CHECK(did_you_mean("x100-sxm", hardware) == "did you mean 'h100-sxm'?");  // no relatives
  CHECK(did_you_mean("x200-sxm", hardware) == "did you mean 'h100-sxm'?");
  CHECK(did_you_mean("epyc-genoa", hardware).empty());
  // The number of another family: either the letter or the number is wrong.
  CHECK(did_you_mean("h300", {"b300", "h200", "h100-sxm"}) ==
        "did you mean 'b300', 'h200' or 'h100-sxm'?");
  CHECK(did_you_mean("m9", {"m1", "m2", "m3", "m4", "m5", "m6"}) ==
        "did you mean 'm1', 'm2', 'm3', 'm4' or 'm5'?");
}

TEST_CASE("error: a message is UTF-8 whatever it quotes") {
  // RFC 3629: 0xFF is in no character, 0xC3 0xA9 is one, and one cut off is none.
  CHECK(printable_line("a\xFF"
                       "b") ==
        "a\xEF\xBF\xBD"
        "b");
  CHECK(printable_line("\xC3\xA9 \xC3") == "\xC3\xA9 \xEF\xBF\xBD");
  CHECK(std::string(Error("a\xFF: no such file").what()) == "a\xEF\xBF\xBD: no such file");
}

TEST_CASE("error: what is too long to read loses its middle") {
  const std::string path = "/folder/" + std::string(6000, 'x') + "/name.json";
  const std::string line = printable_line(path + ": no such file");
  CHECK(line.starts_with("/folder/xxx"));
  CHECK(line.ends_with("xxx/name.json: no such file"));
  CHECK(line.find("x...x") != std::string::npos);
  CHECK(line.size() < 300);
  // An accent of two bytes stands at each place where a cut may fall.
  for (const std::string& before : {std::string(), std::string("x")}) {
    std::string accents = before;
    for (int i = 0; i < 3000; ++i) accents += "\xC3\xA9";
    CHECK(printable_line(accents).find("\xEF\xBF\xBD") == std::string::npos);
    CHECK(printable_line(accents).size() < 300);
  }
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  CHECK(printable_line(words).size() < 4010);
  const std::string short_enough(240, 'x');
  CHECK(printable_line(short_enough + " " + short_enough) == short_enough + " " + short_enough);
}

TEST_CASE("error: nearest takes no time over a text that cannot be a name") {
  const std::string megabytes(20'000'000, 'h');
  CHECK(nearest(megabytes, hardware).empty());
}
