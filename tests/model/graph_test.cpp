#include "model/graph/graph.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/record/recording.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;

namespace {

TensorInfo bytes_tensor(std::uint64_t bytes, Storage storage = Storage::Activations) {
  return {"", {bytes}, DType::INT8, storage, {}};
}

TensorId add(Graph& g, std::vector<TensorId> inputs, std::uint64_t bytes,
             Storage storage = Storage::Activations) {
  return g.add_node({Elementwise{}, std::move(inputs), {}, "op", "layers", no_layer},
                    bytes_tensor(bytes, storage));
}

/// The definition, by enumeration: a tensor is live at node t if it exists by then (its producer
/// runs at t or before; inputs from the start) and is used at t or later (its last reader, or its
/// own producer if nothing reads it; an unread input dies with the first node).
std::uint64_t simulated_peak(const Graph& g, std::span<const std::uint64_t> values) {
  std::uint64_t peak = 0;
  for (std::size_t now = 0; now < g.nodes().size(); ++now) {
    std::uint64_t live = 0;
    for (std::uint32_t t = 0; t < g.tensors().size(); ++t) {
      const TensorInfo& tensor = g.tensors()[t];
      if (tensor.storage != Storage::Activations) continue;
      const std::size_t born = tensor.producer ? tensor.producer->index : 0;
      std::size_t dies = born;
      for (std::size_t i = 0; i < g.nodes().size(); ++i) {
        const auto& inputs = g.nodes()[i].inputs;
        if (std::find(inputs.begin(), inputs.end(), TensorId{t}) != inputs.end()) dies = i;
      }
      if (born <= now && now <= dies) live += tensor.bytes().at(values);
    }
    peak = std::max(peak, live);
  }
  return peak;
}

std::uint64_t peak_of(const Graph& g, std::span<const std::uint64_t> values) {
  std::uint64_t peak = 0;
  for (const Count& c : activation_peaks(g)) peak = std::max(peak, c.at(values));
  return peak;
}

std::string dot_of(const Graph& g, const Symbols& s, const std::string& title = "tiny") {
  std::ostringstream out;
  write_dot(out, g, s, title);
  return out.str();
}

/// What a DOT parser needs at least: balanced braces and brackets outside of strings, strings that
/// end, and each edge between nodes that were declared. Returns the number of declared nodes.
std::size_t checked_dot_nodes(const std::string& dot) {
  int braces = 0;
  int brackets = 0;
  bool quoted = false;
  bool closed_too_early = false;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (quoted && dot[i] == '\\') {
      ++i;
      continue;
    }
    if (dot[i] == '"') quoted = !quoted;
    if (quoted) continue;
    braces += (dot[i] == '{') - (dot[i] == '}');
    brackets += (dot[i] == '[') - (dot[i] == ']');
    closed_too_early |= braces < 0 || brackets < 0;
  }
  CHECK_FALSE(closed_too_early);
  CHECK_FALSE(quoted);
  CHECK(braces == 0);
  CHECK(brackets == 0);
  std::set<std::string> declared;
  std::istringstream lines(dot);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    std::string third;
    words >> first >> second >> third;
    if (first.size() < 2 || first[0] != 'n' || !std::isdigit(static_cast<unsigned char>(first[1])))
      continue;
    if (second == "->") {
      CHECK(declared.contains(first));
      CHECK(declared.contains(third.substr(0, third.find(';'))));
    } else {
      CHECK(declared.insert(first).second);
    }
  }
  return declared.size();
}

}  // namespace

TEST_CASE("graph: an operator may have several results, each with readers of its own") {
  // in (3 bytes) -> values (10) and indices (20); a (5) = values; b (7) = indices.
  //   at the node: 3 + 10 + 20 = 33   at a: 10 + 20 + 5 = 35   at b: 20 + 7 = 27
  Graph g;
  const TensorId in = g.add_tensor(bytes_tensor(3));
  const std::vector<TensorId> both = g.add_node(
      {Elementwise{}, {in}, {}, "top", "layers", no_layer}, {bytes_tensor(10), bytes_tensor(20)});
  const TensorId a = add(g, {both[0]}, 5);
  const TensorId b = add(g, {both[1]}, 7);
  CHECK(g.nodes()[0].outputs == both);
  CHECK(g.nodes()[0].output() == both[0]);
  CHECK(predecessors(g, *g.tensor(a).producer) == std::vector<NodeId>{{0}});
  CHECK(predecessors(g, *g.tensor(b).producer) == std::vector<NodeId>{{0}});
  CHECK(activation_peaks(g) == std::vector<Count>{Count(35)});
  CHECK(simulated_peak(g, {}) == 35);
  std::ostringstream dot;
  write_dot(dot, g, Symbols(), "two results");
  CHECK(dot.str().find("[10] int8 [20] int8") != std::string::npos);
}

TEST_CASE("graph: activations live from their producer to their last reader") {
  // in (3 bytes) -> a (10) -> b (20); c (40) = a + b, after which b and a are gone; d (5) = c.
  //   at a: 3 + 10 = 13   at b: 10 + 20 = 30   at c: 10 + 20 + 40 = 70   at d: 40 + 5 = 45
  Graph g;
  const TensorId in = g.add_tensor(bytes_tensor(3));
  const TensorId a = add(g, {in}, 10);
  const TensorId b = add(g, {a}, 20);
  const TensorId c = add(g, {a, b}, 40);
  add(g, {c}, 5);
  const std::vector<Count> peaks = activation_peaks(g);
  CHECK(std::find(peaks.begin(), peaks.end(), Count(70)) != peaks.end());
  CHECK(peak_of(g, {}) == 70);
  CHECK(simulated_peak(g, {}) == 70);
}

TEST_CASE("graph: weights and cache are no activations; an unread result lives one node") {
  Graph g;
  const TensorId w = g.add_tensor(bytes_tensor(1000, Storage::Weights));
  const TensorId cache = add(g, {w}, 500, Storage::KvCache);
  add(g, {cache}, 7);  // nothing reads it
  add(g, {cache, w}, 11);
  CHECK(peak_of(g, {}) == 11);
  CHECK(simulated_peak(g, {}) == 11);
}

TEST_CASE("graph: the peaks of recorded passes are those of a liveness simulation") {
  const std::string families[] = {
      "{}", R"({"model_type": "olmo", "num_key_value_heads": 6})",
      R"({"model_type": "gemma2", "sliding_window": 5, "attn_logit_softcapping": 50.0})"};
  for (const std::string& patch : families) {
    for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
      const Lowering lowering{kernels, kernels, DType::FP16, DType::FP16, DType::FP16};
      const Recording r = record(tiny(patch), {}, lowering);
      for (const std::uint64_t prompt : {2u, 17u, 900u}) {
        CAPTURE(patch);
        CAPTURE(prompt);
        const SymbolValues values = r.symbols.resolve({3, prompt, prompt + 1});
        CHECK(peak_of(r.prefill(), values) == simulated_peak(r.prefill(), values));
        CHECK(peak_of(r.decode(), values) == simulated_peak(r.decode(), values));
      }
    }
  }
}

TEST_CASE("graph: predecessors are the producers of the inputs, each once") {
  Graph g;
  const TensorId in = g.add_tensor(bytes_tensor(3));
  const TensorId a = add(g, {in}, 1);
  const TensorId b = add(g, {in}, 1);
  add(g, {b, a, b, in}, 1);
  CHECK(predecessors(g, {0}).empty());
  CHECK(predecessors(g, {2}) == std::vector<NodeId>{{0}, {1}});
}

TEST_CASE("graph: every pass is a chain of producers before readers") {
  const Recording r = record(tiny(), {}, {});
  for (std::size_t i = 0; i < r.prefill().nodes().size(); ++i) {
    for (const NodeId before : predecessors(r.prefill(), {static_cast<std::uint32_t>(i)})) {
      CHECK(before.index < i);
    }
  }
}

TEST_CASE("graph: DOT draws identical layers once, with their number") {
  const Recording three = record(tiny(), {}, {});
  const std::string dot = dot_of(three.prefill(), three.symbols);
  const std::size_t drawn = checked_dot_nodes(dot);
  CHECK(dot.find("label=\"layer 0 to 2 (x3)") != std::string::npos);
  CHECK(dot.find("layer 1") == std::string::npos);
  // As many boxes as the model with one layer has operators.
  const Recording one = record(tiny(R"({"num_hidden_layers": 1})"), {}, {});
  CHECK(drawn == one.prefill().nodes().size());
  CHECK(checked_dot_nodes(dot_of(one.prefill(), one.symbols)) == drawn);
}

TEST_CASE("graph: DOT draws layers of different shapes apart") {
  // windows on layers 0 and 2: no two neighbours are alike
  const Recording r = record(tiny(R"({"model_type": "gemma2", "sliding_window": 5})"), {}, {});
  const std::string dot = dot_of(r.prefill(), r.symbols);
  CHECK(checked_dot_nodes(dot) == r.prefill().nodes().size());
  for (const char* layer : {"layer 0\"", "layer 1\"", "layer 2\""}) {
    CHECK(dot.find(layer) != std::string::npos);
  }
}

TEST_CASE("graph: DOT survives a title with quotes and backslashes") {
  const Recording r = record(tiny(), {}, {});
  for (const std::string title : {"a \"quoted\" name", "back\\slash\\", "{brace"}) {
    CAPTURE(title);
    checked_dot_nodes(dot_of(r.decode(), r.symbols, title));
  }
}
