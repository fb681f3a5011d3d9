#include "model/base/json_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

using namespace kvcast;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// A file of its own for a test, gone at its end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    std::ofstream(path(), std::ios::binary) << content;
  }
  fs::path path() const { return folder_ / "file.json"; }

 private:
  TestFolder folder_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct BadFile {
  std::string_view name;
  std::string content;
  const char* word;
};

struct BadValue {
  std::string_view name;
  const char* value;  // of key "k"
  std::function<void(const JsonObject&)> read;
  const char* word;
};

}  // namespace

TEST_CASE("json_file: a valid file is read whole") {
  const TemporaryFile file(R"({"a": [1, 2.5, "x"], "b": null})");
  CHECK(read_json_file(file.path())["a"][1] == 2.5);
}

TEST_CASE("json_file: malformed JSON is one line that names the file and what is wrong") {
  const std::array files{
      BadFile{"empty", "", "not valid JSON"},
      BadFile{"blank", " \n\t ", "not valid JSON"},
      BadFile{"truncated", "{\n\"hidden_size\": 4096,\n\"vocab", "line 3"},
      BadFile{"unclosed", R"({"a": 1)", "not valid JSON"},
      BadFile{"nan", R"({"a": NaN})", "line 1"},
      BadFile{"infinity", R"({"a": -Infinity})", "line 1"},
      BadFile{"comma", "{\"a\": 1,\n}", "line 2"},
      BadFile{"comment", "// note\n{}", "line 1"},
      BadFile{"single-quotes", "{'a': 1}", "line 1"},
      BadFile{"two-documents", "{} {}", "not valid JSON"},
      BadFile{"overflow", R"({"a": 1e999})", "not valid JSON"},
      BadFile{"binary", std::string("\x00\x01\xff\xfe{", 5), "not valid JSON"},
      BadFile{"newline-in-string", "{\"a\": \"x\ny\"}", "not valid JSON"},
      BadFile{"bad-utf8", "{\"a\": \"\xff\"}", "not valid JSON"},
      BadFile{"leading-zero", R"({"a": 010})", "not valid JSON"},
  };
  for (const BadFile& f : files) {
    const TemporaryFile file(f.content);
    const std::string line = message_of([&] { read_json_file(file.path()); });
    CAPTURE(line);
    CHECK(line.starts_with(file.path().string()));
    CHECK(has(line, f.word));
    CHECK_FALSE(has(line, "\n"));
  }
}

TEST_CASE("json_file: Infinity, which Python writes, is named as transformers 5 names it") {
  const json document =
      parse_json(R"({"a": [0.0, Infinity], "b": "\"Infinity", "c": "Infinity"})", "t");
  const json infinity = {{"__float__", "Infinity"}};
  CHECK(document["a"] == json{0.0, infinity});
  CHECK(document["b"] == "\"Infinity");
  CHECK(document["c"] == "Infinity");
  CHECK(shown(document["a"]) == "[0.0,Infinity]");
  for (const char* text : {"[-Infinity]", "[Infinityx]", "{Infinity: 1}", "[NaN]"}) {
    CAPTURE(text);
    CHECK(message_of([&] { parse_json(text, "t"); }).starts_with("t: not valid JSON"));
  }
}

TEST_CASE("json_file: a missing file, a folder and a huge file are refused by name") {
  CHECK(has(message_of([] { read_json_file("/nonexistent/config.json"); }),
            "/nonexistent/config.json: cannot be opened"));
  const std::string folder = fs::temp_directory_path().string();
  CHECK(has(message_of([&] { read_json_file(folder); }), "a folder, expected a JSON file"));
  const TemporaryFile huge(std::string((16u << 20) + 1, ' '));
  CHECK(has(message_of([&] { read_json_file(huge.path()); }), "at most 16 MiB"));
}

TEST_CASE("json_file: a document nested a hundred thousand deep is refused without a crash") {
  constexpr std::size_t depth = 100'000;
  const TemporaryFile file(std::string(depth, '[') + std::string(depth, ']'));
  const std::string line = message_of([&] {
    const json document = read_json_file(file.path());
    JsonObject(document, file.path().string());
  });
  CHECK(line.starts_with(file.path().string()));
  CHECK(line.size() < 500);
}

TEST_CASE("json_file: places are paths from the file on") {
  const json document = json::parse(R"({"outer": {"inner": {"leaf": -1}}})");
  const JsonObject o(document, "m.json");
  CHECK(o.place_of("x") == "m.json: /x");
  const std::string line = message_of([&] { o.object("outer").object("inner").whole("leaf"); });
  CHECK(line == "m.json: /outer/inner/leaf: got -1, expected a whole number from 1 to 2^40");
}

TEST_CASE("json_file: a value of another kind or range is refused with its place") {
  const auto whole = [](const JsonObject& o) { o.whole("k"); };
  const auto wholes = [](const JsonObject& o) { o.wholes("k"); };
  const auto positive = [](const JsonObject& o) { o.positive("k"); };
  const auto positives = [](const JsonObject& o) { o.positives("k"); };
  const auto texts = [](const JsonObject& o) { o.texts("k"); };
  const auto text = [](const JsonObject& o) { o.text("k"); };
  const auto flag = [](const JsonObject& o) { o.flag_or("k", true); };
  const auto object = [](const JsonObject& o) { o.object("k"); };
  const std::array cases{
      BadValue{"whole of null", "null", whole, "missing"},
      BadValue{"whole of zero", "0", whole, "from 1 to 2^40"},
      BadValue{"whole of a negative", "-3", whole, "got -3"},
      BadValue{"whole of a half", "4096.5", whole, "got 4096.5"},
      BadValue{"whole of a string", "\"4096\"", whole, "got \"4096\""},
      BadValue{"whole of true", "true", whole, "got true"},
      BadValue{"whole of a list", "[4096]", whole, "got [4096]"},
      BadValue{"whole of an object", "{}", whole, "got {}"},
      BadValue{"whole above 2^40", "1099511627777", whole, "got 1099511627777"},
      BadValue{"whole above 2^64", "18446744073709551617", whole, "from 1 to 2^40"},
      BadValue{"whole of 1e300", "1e300", whole, "from 1 to 2^40"},
      BadValue{"wholes of a number", "7", wholes, "a list of whole numbers"},
      BadValue{"wholes of an empty list", "[]", wholes, "a list of whole numbers"},
      BadValue{"wholes with a zero", "[4, 0]", wholes, "got 0"},
      BadValue{"wholes with a string", "[4, \"4\"]", wholes, "got \"4\""},
      BadValue{"wholes with a negative", "[4, -4]", wholes, "got -4"},
      BadValue{"wholes with a null", "[4, null]", wholes, "got null"},
      BadValue{"wholes with a list", "[[4]]", wholes, "got [4]"},
      BadValue{"positive of zero", "0", positive, "a number above 0"},
      BadValue{"positive of minus zero", "-0.0", positive, "a number above 0"},
      BadValue{"positive of a string", "\"1e-5\"", positive, "a number above 0"},
      BadValue{"positive of the smallest double", "5e-324", positive, "1e-30 to 1e30"},
      BadValue{"positive of a huge number", "1e308", positive, "1e-30 to 1e30"},
      BadValue{"texts of a string", "\"1\"", texts, "a list of strings"},
      BadValue{"texts with a number", "[\"1\", 2]", texts, "got 2"},
      BadValue{"positives of a string", "\"1\"", positives, "a list of numbers"},
      BadValue{"positives of an empty list", "[]", positives, "a list of numbers"},
      BadValue{"positives with a negative", "[1, -0.5]", positives, "got -0.5"},
      BadValue{"positives with a huge number", "[1, 1e308]", positives, "got 1e+308"},
      BadValue{"text of a number", "7", text, "a string"},
      BadValue{"text of null", "null", text, "missing"},
      BadValue{"flag of a string", "\"true\"", flag, "true or false"},
      BadValue{"flag of 1", "1", flag, "true or false"},
      BadValue{"object of a string", "\"linear\"", object, "an object"},
      BadValue{"object of a list", "[]", object, "an object"},
  };
  for (const BadValue& c : cases) {
    const json document = json::parse("{\"k\": " + std::string(c.value) + "}");
    const std::string line = message_of([&] { c.read(JsonObject(document, "file.json")); });
    CAPTURE(c.name);
    CAPTURE(line);
    CHECK(line.starts_with("file.json: /k: "));
    CHECK(has(line, c.word));
    CHECK_FALSE(has(line, "\n"));
  }
}

TEST_CASE("json_file: a shown value stays short and valid") {
  json document;
  document["k"] = std::string(5000, 'x');
  const JsonObject o(document, "f");
  CHECK(message_of([&] { o.whole("k"); }).size() < 160);
}

TEST_CASE("json_file: whole floats and null fallbacks are read as people mean them") {
  const json document = json::parse(R"({"a": 4096.0, "b": null, "c": 1099511627776, "f": 0.5})");
  const JsonObject o(document, "f");
  CHECK(o.whole("a") == 4096);
  CHECK(o.whole_or("b", 7) == 7);
  CHECK(o.whole("c") == std::uint64_t{1} << 40);
  CHECK(o.positive_or("b", 2.5) == 2.5);
  CHECK(o.positive("f") == 0.5);
  CHECK(o.text_or("b", "silu") == "silu");
  CHECK_FALSE(o.flag_or("b", true));
  CHECK(o.flag_or("missing", true));
  CHECK_FALSE(o.has("b"));
  CHECK_FALSE(o.has("missing"));
}

TEST_CASE("json_file: a key that nobody asked for is named with its neighbour") {
  const json document = json::parse(R"({"bandwidth": 1, "latancy": 2})");
  const JsonObject o(document, "hw.json");
  o.has("bandwidth");
  o.has("latency");
  CHECK(message_of([&] { o.reject_unknown_keys(); }) ==
        "hw.json: unknown key 'latancy'; did you mean 'latency'?");
  const JsonObject all(document, "hw.json");
  all.has("bandwidth");
  all.has("latancy");
  CHECK_NOTHROW(all.reject_unknown_keys());
}
