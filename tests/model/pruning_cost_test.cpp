#include <string>
#include <variant>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/config/layer_pruning.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

using namespace kvcast;

namespace {

Architecture llama(std::uint64_t layers, std::uint64_t vocab_size = 51) {
  return read_config({{"model_type", "llama"},
                      {"hidden_size", 48},
                      {"vocab_size", vocab_size},
                      {"num_hidden_layers", layers},
                      {"num_attention_heads", 6},
                      {"num_key_value_heads", 3},
                      {"intermediate_size", 20}},
                     "llama-" + std::to_string(layers), "llama.json");
}

Recording record_with(const Architecture& base, const std::string& methods) {
  return record(base, parse_methods(methods), {}, {.find_model = [](const std::string& name) {
                  return name == "other-words" ? llama(3, 5000) : llama(3);
                }});
}

/// FLOPs of the layers' projections and MLPs in every pass before the first token, which is what
/// the papers count.
double layer_products(const Recording& r, std::uint64_t prompt_len) {
  double sum = 0;
  const auto add = [&](const Graph& graph, const SymbolValues& values, double steps) {
    for (const Node& node : graph.nodes()) {
      if (!std::holds_alternative<Linear>(node.op) || node.phase == "head") continue;
      sum += steps * static_cast<double>(work(graph, node).flops.at(values));
    }
  };
  const SymbolValues values = r.symbols.resolve({2, prompt_len, prompt_len});
  for (const RecordedPass& pass : r.helpers()) {
    add(pass.graph, values, static_cast<double>(pass.steps));
  }
  add(r.prefill(), values, 1);
  return sum;
}

constexpr std::uint64_t prompt = 1'000'000;  // so that rounding up does not show

double reduction(const Architecture& a, const std::string& methods) {
  return layer_products(record(a, {}, {}), prompt) /
         layer_products(record_with(a, methods), prompt);
}

std::string message(const Architecture& a, const std::string& methods) {
  return message_of([&] { record_with(a, methods); });
}

}  // namespace

// Horton et al. 2024 (arXiv:2410.08391), Tables 5 to 8: the baselines' "FLOPs reduction".
TEST_CASE("pruning: the baselines cost what KV Prediction's paper says they do") {
  for (const std::string keep : {"0.75", "0.5", "0.25"}) {
    const double r = std::stod(keep);
    CAPTURE(keep);
    CHECK(reduction(llama(8), "random-prune:keep=" + keep) == near(1 / r));
    CHECK(reduction(llama(8), "static-prune:keep=" + keep) == near(1 / (0.25 + r)));
  }
  struct Ends {
    double begin;
    double end;
  };
  for (const Ends e : {Ends{0.75, 0.1}, Ends{0.75, 0.01}, Ends{0.5, 0.5}, Ends{1, 0.25}}) {
    const std::string method =
        "lazyllm:begin=" + std::to_string(e.begin) + ",end=" + std::to_string(e.end);
    CAPTURE(method);
    // Ten layers: three before 30 % of the depth, six up to 90 %, one after.
    CHECK(reduction(llama(10), method) ==
          near(1 / (0.3 + 0.6 * (e.begin + e.end) / 2 + 0.1 * e.end)));
  }
}

TEST_CASE("pruning: a speculator of other size costs its own products and look-aheads") {
  const Architecture base = llama(8);
  const double speculator = layer_products(record(llama(3), {}, {}), prompt);
  const double one_token = speculator / prompt;
  const double kept = layer_products(record(base, {}, {}), prompt / 5);
  for (const std::uint64_t lookahead : {1u, 2u, 8u}) {
    const Recording r = record_with(
        base, "specprefill:keep=0.2,speculator=small,lookahead=" + std::to_string(lookahead));
    CHECK(layer_products(r, prompt) ==
          near(speculator + static_cast<double>(lookahead - 1) * one_token + kept));
    CHECK(r.helper_parameters == count_parameters(llama(3)));
    CHECK(r.parameters == count_parameters(base));
  }
}

// In estimates as in runs: by catalog name, and by the file that stands behind it.
TEST_CASE("pruning: a base named as its own speculator is counted once") {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  const std::string file = KVCAST_SOURCE_DIR "/tests/../data/models/pythia-70m.json";
  const FindModel find = [&](const std::string& name) { return load_model(catalog, name); };
  const auto recorded = [&](const Architecture& a, const std::string& methods) {
    return record(a, parse_methods(methods), {}, {.find_model = find});
  };
  const Architecture base = find("pythia-70m");
  const std::uint64_t own = recorded(base, "specprefill:keep=0.3").weight_bytes.at({});
  for (const std::string& name : {std::string("pythia-70m"), file}) {
    CAPTURE(name);
    const std::string named = "specprefill:keep=0.3,speculator=" + name;
    const Recording r = recorded(base, named);
    CHECK(r.weight_bytes.at({}) == own);
    CHECK(r.helper_models.empty());
    CHECK(r.helper_parameters == 0);
    CHECK(recorded(base, named + ",reuse=kept").selection->reused);
    CHECK(recorded(find(file), named).helper_models.empty());
  }
  // Another model, the same under other settings, and what another has been made of are not it.
  const std::string named = "specprefill:keep=0.3,speculator=pythia-70m";
  const auto helpers = [&](const Architecture& a, const std::string& methods) {
    return recorded(a, methods).helper_models.size();
  };
  CHECK(helpers(find("pythia-160m"), named) == 1);
  CHECK(helpers(load_model(catalog, "pythia-70m", {{"num_hidden_layers", "2"}}), named) == 1);
  CHECK(helpers(prune_layers(base, retained_layers(6, 0.5)), named) == 1);
  for (const std::string conversion : {"mlkv:layers=3,heads=8", "mlkv:layers=6,heads=4"}) {
    CHECK(helpers(base, named + "+" + conversion) == 1);
    CHECK(helpers(base, conversion + "+" + named) == 1);
  }
  CHECK(helpers(base, named + "+mlkv:layers=6,heads=8") == 0);  // as it is
  const Architecture learned = find("opt-1.3b");
  const std::string opt = "specprefill:keep=0.3,speculator=opt-1.3b";
  CHECK(helpers(learned, opt) == 0);
  CHECK(helpers(learned, opt + "+slim:option=kcache") == 1);
  CHECK(helpers(learned, "slim:option=kcache+" + opt) == 1);
}

// methods.md, section 3, cost: the score pass is L·H·hd·M·N multiply-adds.
TEST_CASE("pruning: the score pass multiplies every kept query with every key of the prompt") {
  const Recording r =
      record_with(llama(8), "specprefill:keep=0.2,speculator=small,lookahead=5,pool=13");
  REQUIRE(r.helpers().size() == 3);
  const SymbolValues values = r.symbols.resolve({2, 700, 1});
  std::uint64_t products = 0;
  for (const Node& node : r.helpers()[2].graph.nodes()) {
    if (!std::holds_alternative<AttentionScores>(node.op)) continue;
    products += work(r.helpers()[2].graph, node).flops.at(values);
  }
  CHECK(products == 2u * 2 * 3 * 6 * 8 * 700 * 5);  // FLOPs, batch, L, H, hd, M, N
}

TEST_CASE("pruning: the cache holds the kept tokens and what follows") {
  const Architecture base = llama(10);
  const double row = 2 * 2 * 3 * 8;  // keys and values of a layer, fp16
  const auto cache = [&](const std::string& methods, std::uint64_t kv_len) {
    const Recording r = record_with(base, methods);
    return static_cast<double>(r.kv_cache_bytes.at(r.symbols.resolve({1, 1000, kv_len})));
  };
  CHECK(cache("static-prune:keep=0.3", 305) == row * 10 * 305);
  // Retention 1, 1, 1, then 0.5 in seven layers, each with the 5 tokens decoded since; one list of
  // their tokens, 4 bytes each, and the Aux Cache of 500 states of 48 numbers and as many tokens.
  const double aux = 500 * (2 * 48 + 4);
  CHECK(cache("lazyllm:begin=0.5,end=0.5", 1005) == row * (3 * 1005 + 7 * 505) + 4 * 505 + aux);
  // A tenth of the 500 comes back in each of the 4 steps before, and in this one.
  CHECK(cache("lazyllm:begin=0.5,end=0.5,revive=0.1", 1005) ==
        row * (3 * 1005 + 7 * 755) + 4 * 755 + aux);
  // All are back after 10 steps, and the cache is whole.
  CHECK(cache("lazyllm:begin=0.5,end=0.5,revive=0.1", 1020) == row * 10 * 1020 + 4 * 1020 + aux);
  // 200 in the first step, 25 in each of the three that follow it, and in this one.
  CHECK(cache("lazyllm:begin=0.5,end=0.5,revive_first=0.4,revive=0.05", 1005) ==
        row * (3 * 1005 + 7 * 805) + 4 * 805 + aux);
  // Nothing after the first.
  CHECK(cache("lazyllm:begin=0.5,end=0.5,revive_first=0.4", 1005) ==
        row * (3 * 1005 + 7 * 705) + 4 * 705 + aux);
}

// fp16: the speculator's 3 layers keep 1000 rows of 3 heads of 8 numbers, and queries of 6 heads.
TEST_CASE("pruning: the speculator's cache is its keys and queries, with a look-ahead its values") {
  const auto bytes = [&](const std::string& options) {
    const Recording r = record_with(llama(10), "specprefill:keep=0.3,speculator=small," + options);
    double sum = 0;
    for (const RecordedPass& pass : r.helpers()) {
      sum += static_cast<double>(pass.cache_bytes.at(r.symbols.resolve({1, 1000, 1003})));
    }
    return sum;
  };
  CHECK(bytes("lookahead=1") == 2 * 3 * (1000 * 3 * 8 + 6 * 8));
  CHECK(bytes("lookahead=4") == 2 * 3 * (2 * 1003 * 3 * 8 + 4 * 6 * 8));
}

// Each of the seven pruned layers takes 50 tokens through its projections and MLP beside the step's
// own: 2·(48·(6 + 3 + 3)·8 + 48·48 + 3·48·20) FLOPs a token.
TEST_CASE("pruning: a decode step pays for the tokens that it is expected to revive") {
  const auto products = [&](const std::string& methods, std::uint64_t kv_len) {
    const Recording r = record_with(llama(10), methods);
    std::uint64_t sum = 0;
    for (const Node& node : r.decode().nodes()) {
      if (!std::holds_alternative<Linear>(node.op) || node.phase == "head") continue;
      sum += work(r.decode(), node).flops.at(r.symbols.resolve({1, 1000, kv_len}));
    }
    return sum;
  };
  const std::uint64_t token = 2 * (48 * 12 * 8 + 48 * 48 + 3 * 48 * 20);
  CHECK(products("lazyllm:begin=0.5,end=0.5", 1005) == 10 * token);
  CHECK(products("lazyllm:begin=0.5,end=0.5,revive=0.1", 1005) == (3 + 7 * 51) * token);
  CHECK(products("lazyllm:begin=0.5,end=0.5,revive=0.1", 1020) == 10 * token);
  const std::string by_step = "lazyllm:begin=0.5,end=0.5,revive_first=0.4,revive=0.05";
  CHECK(products(by_step, 1001) == (3 + 7 * 201) * token);
  CHECK(products(by_step, 1002) == (3 + 7 * 26) * token);
  CHECK(products(by_step, 1013) == (3 + 7 * 26) * token);  // the last: 200 + 12 · 25 is all
  CHECK(products(by_step, 1014) == 10 * token);
  CHECK(products("lazyllm:begin=0.5,end=0.5,revive_first=0.4", 1002) == 10 * token);
  CHECK(products("lazyllm:begin=0.5,end=0.5,revive_first=0,revive=0.1", 1001) == 10 * token);
  CHECK(products("lazyllm:begin=0.5,end=0.5,revive_first=0,revive=0.1", 1002) ==
        (3 + 7 * 51) * token);
}

TEST_CASE("pruning: what does not fit is refused in one line") {
  const Architecture a = llama(4);
  const auto says = [&](const std::string& methods, std::string_view words) {
    CAPTURE(methods);
    check_line(message(a, methods), {words});
  };
  for (const std::string keep : {"0", "-1", "1.5", "nan", "half"}) {
    says("specprefill:keep=" + keep, "a fraction above 0 and at most 1");
    says("static-prune:keep=" + keep, "a fraction above 0 and at most 1");
  }
  says("specprefill", "option 'keep' is missing");
  says("specprefill:keep=0.5,pool=4", "an odd number");
  says("specprefill:keep=0.5,pool=0", "a whole number from 1");
  says("specprefill:keep=0.5,lookahead=0", "a whole number from 1");
  says("specprefill:keep=0.5,lookahead=1048577", "at most 1048576");
  says("specprefill:keep=0.5,speculator=other-words", "a vocabulary of 5000");
  says("specprefill:keep=0.5+streaming:sinks=2,window=6", "cannot be combined");
  says("lazyllm:begin=0.2,end=0.5", "end at most begin");
  says("lazyllm:begin=0.5,end=0.2,revive=2", "option revive");
  says("lazyllm:begin=0.5,end=0.2,revive_first=-0.1", "a fraction from 0 to 1");
  says("lazyllm:begin=0.5,end=0.2,from=0.9,to=0.3", "from below to");
  says("static-prune:keep=0.5,probe=2", "option probe");
  Architecture windows = a;
  for (LayerShape& layer : windows.decoder.layers) layer.sliding_window = 9;
  CHECK(has(message(windows, "lazyllm:begin=0.5,end=0.2"), "whose layers all have windows"));
  const auto refusal = [&](const char* methods, const RecordOptions& options) {
    return message_of([&] { record(a, parse_methods(methods), {}, options); });
  };
  CHECK(has(refusal("specprefill:keep=0.5,speculator=x", {}), "cannot be looked up"));
  CHECK(has(refusal("static-prune:keep=0.5", {.chunked = true}), "in one piece"));
}
