#include "model/methods/method.h"

#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "model/graph/work.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;

namespace {

struct Bad {
  std::string_view text;
  std::vector<std::string_view> words;
};

std::string refusal(const std::string& methods, const Architecture& a = tiny()) {
  return message_of([&] { record(a, parse_methods(methods), {}); });
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
           {"random-prune:keep=0.5+random-prune:keep=0.4",
            {"cannot be combined", "which prompt tokens"}},
           {"plain+random-prune:keep=0.5",
            {"'plain' and 'random-prune' cannot be combined", "which prompt tokens",
             "one of them"}},
           {"pla\nin", {"unknown method"}}}) {
    CAPTURE(c.text);
    check_line(message_of([&] { parse_methods(c.text); }), c.words);
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
    if (value == "0,5") continue;  // the comma ends the option: keep=0 and '5'
    check_line(refusal("random-prune:keep=" + value),
               {"option keep: got '" + value + "'", "a fraction above 0 and at most 1"});
  }
  CHECK(has(refusal("random-prune:keep=0,5"), "option '5'"));
}

TEST_CASE("method: an option that a method cannot do without is asked for") {
  CHECK(has(refusal("random-prune"), "option 'keep' is missing; expected random-prune:keep=F"));
}

TEST_CASE("method: every registered method is found, has a summary and a name of its own") {
  for (const Method& m : methods()) {
    CAPTURE(m.name);
    CHECK(&find_method(m.name) == &m);
    CHECK_FALSE(m.summary.empty());
    CHECK(m.summary.find('\n') == std::string_view::npos);
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
  // in each of 3 layers), and in eager code cos and sin, also read the 11 positions, 4 bytes each.
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Lowering lowering{kernels, kernels, DType::FP16, DType::FP16, DType::FP16};
    const Recording plain = record(tiny(), {}, lowering);
    const Recording pruned = record(tiny(), parse_methods("random-prune:keep=0.25"), lowering);
    const Work p = total_work(plain.prefill());
    const Work q = total_work(pruned.prefill());
    const SymbolValues at_11 = plain.symbols.resolve({1, 11, 13});
    const SymbolValues at_44 = pruned.symbols.resolve({1, 44, 13});
    const std::uint64_t readers = kernels == Kernels::Eager ? 2 : 6;
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
  const Architecture t5 = model_of(R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
    "num_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})");
  check_line(refusal("random-prune:keep=0.5", t5),
             {"the encoder-decoder model tiny", "a decoder-only model"});
}
