#include "model/methods/method.h"

#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/record/recording.h"

using namespace kvcast;
using nlohmann::json;

namespace {

struct Bad {
  std::string_view text;
  std::vector<std::string_view> words;
};

Architecture tiny() {
  return read_config(json::parse(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 20})"),
                     "tiny", "tiny.json");
}

std::string message_of(const std::string& methods, const Architecture& a) {
  try {
    record(a, parse_methods(methods), {});
  } catch (const Error& e) {
    return e.what();
  }
  return "(no Error was thrown)";
}

}  // namespace

TEST_CASE("method: a name alone, or with options, is read as it is written") {
  CHECK(parse_methods("plain") == std::vector<MethodSpec>{{"plain", {}}});
  CHECK(parse_methods("random-prune:keep=0.5") ==
        std::vector<MethodSpec>{{"random-prune", {{"keep", "0.5"}}}});
  for (const std::string text : {"plain", "random-prune:keep=0.25"}) {
    CHECK(to_string(parse_methods(text)) == text);
  }
  CHECK(to_string({{"a", {{"x", "1"}, {"y", "2"}}}, {"b", {}}}) == "a:x=1,y=2+b");
}

TEST_CASE("method: what is no method, or not one of each kind, is refused in one line") {
  for (const Bad& c : std::vector<Bad>{
           {"", {"an empty method name", "NAME[:KEY=VALUE"}},
           {"+plain", {"an empty method name"}},
           {"plain+", {"an empty method name"}},
           {":keep=0.5", {"an empty method name"}},
           {"plane", {"unknown method 'plane'", "did you mean 'plain'?"}},
           {"Plain", {"did you mean 'plain'?"}},
           {" plain", {"did you mean 'plain'?"}},
           {"random_prune:keep=0.5", {"did you mean 'random-prune'?"}},
           {"thinking-hard", {"unknown method", "expected one of: plain"}},
           {"plain:keep=0.5", {"method plain takes no options", "keep"}},
           {"random-prune:", {"option ''", "KEY=VALUE"}},
           {"random-prune:keep", {"option 'keep'", "KEY=VALUE"}},
           {"random-prune:keep=", {"option 'keep='", "KEY=VALUE"}},
           {"random-prune:=0.5", {"option '=0.5'", "KEY=VALUE"}},
           {"random-prune:keep=0.5,", {"option ''", "KEY=VALUE"}},
           {"random-prune:keap=0.5", {"unknown option 'keap'", "did you mean 'keep'?"}},
           {"random-prune:keep=0.5,keep=0.4", {"'keep' given twice"}},
           {"random-prune:keep=0.5+random-prune:keep=0.4", {"do not compose", "'prompt'"}},
           {"plain+random-prune:keep=0.5",
            {"'plain' and 'random-prune' do not compose", "kind 'prompt'", "at most one"}},
           {"pla\nin", {"unknown method"}}}) {
    std::string line = "(no Error was thrown)";
    try {
      parse_methods(c.text);
    } catch (const Error& e) {
      line = e.what();
    }
    CAPTURE(c.text);
    CAPTURE(line);
    CHECK(line.find('\n') == std::string::npos);
    for (const std::string_view word : c.words) {
      CAPTURE(word);
      CHECK(line.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("method: a fraction is a plain number above 0 and at most 1") {
  const auto fraction = [](const std::string& value) {
    return fraction_option({"random-prune", {{"keep", value}}}, "keep");
  };
  CHECK(fraction("0.25") == 0.25);
  CHECK(fraction("1") == 1);
  CHECK(fraction("1e-3") == 1e-3);
  for (const std::string value : {"0", "-0.5", "1.0000001", "nan", "inf", "half", "0.5x", "50%",
                                  " 0.5", "1e-400", "0,5", "2"}) {
    CAPTURE(value);
    const std::string line = message_of("random-prune:keep=" + value, tiny());
    CAPTURE(line);
    if (value == "0,5") continue;  // the comma ends the option: keep=0 and '5'
    CHECK(line.find("option keep: got '" + value + "'") != std::string::npos);
    CHECK(line.find("a fraction above 0 and at most 1") != std::string::npos);
  }
  CHECK(message_of("random-prune:keep=0,5", tiny()).find("option '5'") != std::string::npos);
}

TEST_CASE("method: an option that a method cannot do without is asked for") {
  CHECK(message_of("random-prune", tiny())
            .find("option 'keep' is missing; expected "
                  "random-prune:keep=F") != std::string::npos);
}

TEST_CASE("method: every registered method is found, has a summary and a name of its own") {
  for (const Method& m : methods()) {
    CAPTURE(m.name);
    CHECK(&find_method(m.name) == &m);
    CHECK_FALSE(m.summary.empty());
    CHECK(m.summary.find('\n') == std::string_view::npos);
  }
  for (const MethodKind kind :
       {MethodKind::Prompt, MethodKind::Source, MethodKind::Cache, MethodKind::Placement}) {
    CHECK_FALSE(name(kind).empty());
  }
}

TEST_CASE("method: random pruning keeps the share of the prompt, rounded up") {
  const Recording r = record(tiny(), parse_methods("random-prune:keep=0.3"), {});
  for (std::uint64_t prompt = 1; prompt < 40; ++prompt) {
    CHECK(r.prompt_slots.at(r.symbols.resolve({2, prompt, 3})) == (3 * prompt + 9) / 10);
  }
}

TEST_CASE("method: a pruned prefill costs what a plain prefill of the kept tokens costs") {
  // keep = 0.25 of 44 tokens is 11. The decode step at 13 slots is the plain one. Each rotation (2
  // in each of 2 layers), and in eager code cos and sin, also read the 11 positions, 4 bytes each.
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Lowering lowering{kernels, kernels, DType::FP16, DType::FP16, DType::FP16};
    const Recording plain = record(tiny(), {}, lowering);
    const Recording pruned = record(tiny(), parse_methods("random-prune:keep=0.25"), lowering);
    const Work p = total_work(plain.prefill());
    const Work q = total_work(pruned.prefill());
    const SymbolValues at_11 = plain.symbols.resolve({1, 11, 13});
    const SymbolValues at_44 = pruned.symbols.resolve({1, 44, 13});
    const std::uint64_t readers = kernels == Kernels::Eager ? 2 : 4;
    CHECK(q.flops.at(at_44) == p.flops.at(at_11));
    CHECK(q.bytes().at(at_44) == p.bytes().at(at_11) + readers * 11 * 4);
    CHECK(total_work(pruned.decode()).flops.at(at_44) ==
          total_work(plain.decode()).flops.at(at_11));
    CHECK(pruned.parameters == plain.parameters);
  }
}

TEST_CASE("method: random pruning that keeps everything is plain") {
  const Recording plain = record(tiny(), parse_methods("plain"), {});
  const Recording all = record(tiny(), parse_methods("random-prune:keep=1"), {});
  const Work p = total_work(plain.prefill());
  const Work q = total_work(all.prefill());
  for (const std::uint64_t prompt : {1u, 2u, 7u, 100u, 131072u}) {
    const SymbolValues x = plain.symbols.resolve({3, prompt, 5});
    const SymbolValues y = all.symbols.resolve({3, prompt, 5});
    CHECK(p.flops.at(x) == q.flops.at(y));
    CHECK(p.bytes().at(x) == q.bytes().at(y));
    CHECK(all.prompt_slots.at(y) == prompt);
  }
  CHECK(total_work(plain.decode()) == total_work(all.decode()));
}

TEST_CASE("method: random pruning of an encoder is refused") {
  const Architecture t5 = read_config(json::parse(R"({"model_type": "t5", "d_model": 42,
    "vocab_size": 51, "num_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})"),
                                      "tiny-t5", "f");
  const std::string line = message_of("random-prune:keep=0.5", t5);
  CHECK(line.find("tiny-t5") != std::string::npos);
  CHECK(line.find("a decoder-only model") != std::string::npos);
}
