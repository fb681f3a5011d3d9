#include "roofline/launches.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "roofline/op_cost.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

constexpr auto activations = static_cast<std::size_t>(Storage::Activations);
constexpr auto weights = static_cast<std::size_t>(Storage::Weights);

Lowering with(std::vector<std::vector<std::string>> lists, Launch::In in = Launch::In::AnyPass) {
  Lowering l;
  for (std::vector<std::string>& labels : lists) l.launches.push_back({std::move(labels), in});
  return l;
}

/// "query+key value": the labels of each launch.
std::string said(const Graph& graph, const Lowering& lowering) {
  std::string text;
  for (const auto& nodes : launches_of(graph, lowering)) {
    text += text.empty() ? "" : " ";
    for (const std::size_t i : nodes) {
      text += (i == nodes.front() ? "" : "+") + graph.nodes()[i].label;
    }
  }
  return text;
}

/// fp16, x [5, 6].
struct Hand {
  Symbols symbols;
  Recorder r{symbols, Lowering{}};
  Value x = r.input("x", {5, 6}, DType::FP16);

  Value relu(const char* label, Value v) { return r.unary(label, Function::Relu, v); }
  Value product(const char* label, Value v, std::uint64_t outputs) {
    return r.linear(label, v, r.weight(label, {outputs, 6}));
  }
};

Work work_of(const Graph& graph, const std::vector<std::size_t>& nodes) {
  return launch_work(graph, nodes, uses_of(graph));
}

}  // namespace

TEST_CASE("launches: without lists each operator is one kernel") {
  Hand h;
  h.r.output(h.relu("b", h.relu("a", h.x)));
  const Graph g = h.r.take();
  CHECK(said(g, {}) == "a b");
  CHECK(said(g, with({{"b", "a"}})) == "a b");  // the order of a list is that of the nodes
}

TEST_CASE("launches: what a chain hands on does not go through memory") {
  Hand h;
  h.r.output(h.relu("c", h.relu("b", h.relu("a", h.x))));
  const Graph g = h.r.take();
  CHECK(said(g, with({{"a", "b", "c"}})) == "a+b+c");
  // Each reads and writes 5 x 6 x 2 = 60 bytes; of the three, the first reads and the last writes.
  const Work w = work_of(g, {0, 1, 2});
  CHECK(w.flops == Count(3 * 30));
  CHECK(w.read[activations] == Count(60));
  CHECK(w.written[activations] == Count(60));
}

TEST_CASE("launches: what a node outside reads too is written all the same") {
  Hand h;
  const Value a = h.relu("a", h.x);
  const Value b = h.relu("b", a);
  h.r.output(h.r.binary("sum", Function::Add, a, b));
  const Graph g = h.r.take();
  CHECK(said(g, with({{"a", "b"}})) == "a+b sum");
  const Work w = work_of(g, {0, 1});
  CHECK(w.read[activations] == Count(60));      // x
  CHECK(w.written[activations] == Count(120));  // a and b
  CHECK(work_of(g, {2}) == work(g, g.nodes()[2]));
  // All three: a is read twice inside, and only the sum is written.
  const Work all = work_of(g, {0, 1, 2});
  CHECK(all.read[activations] == Count(60));
  CHECK(all.written[activations] == Count(60));
}

TEST_CASE("launches: siblings read their input once and all of their weights") {
  Hand h;
  h.r.output(h.product("query", h.x, 7));
  h.r.output(h.product("key", h.x, 3));
  h.r.output(h.product("value", h.x, 4));
  const Graph g = h.r.take();
  CHECK(said(g, with({{"query", "key", "value"}})) == "query+key+value");
  const Work w = work_of(g, {0, 1, 2});
  CHECK(w.flops == Count(2 * 5 * 6 * (7 + 3 + 4)));
  CHECK(w.read[activations] == Count(60));
  CHECK(w.read[weights] == Count(2 * 6 * (7 + 3 + 4)));
  CHECK(w.written[activations] == Count(2 * 5 * (7 + 3 + 4)));
  // fold() has them as one group.
  const std::vector<OpGroup> groups = fold(g, with({{"query", "key", "value"}}));
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].label == "query+key+value");
  CHECK(groups[0].work == w);
  CHECK(groups[0].rate_class == RateClass::Matrix);
}

TEST_CASE("launches: labels of a list that no node has are passed over") {
  Hand h;
  h.r.output(h.relu("softmax", h.relu("mask", h.relu("scale", h.x))));
  const Graph g = h.r.take();
  CHECK(said(g, with({{"scale", "mask", "clamp", "softmax"}})) == "scale+mask+softmax");
  CHECK(said(g, with({{"repeat", "scale"}})) == "scale mask softmax");
  CHECK(said(g, with({{"repeat", "scale", "mask"}})) == "scale+mask softmax");
}

TEST_CASE("launches: a residual joins the norm behind it, of its layer or the next one") {
  Hand h;
  Value x = h.x;
  for (int layer = 0; layer < 2; ++layer) {
    h.r.enter("decoder", layer);
    const Value attended = h.product("output", h.relu("attention_norm", x), 6);
    const Value middle = h.r.binary("residual", Function::Add, x, attended);
    const Value fed = h.product("down", h.relu("mlp_norm", middle), 6);
    x = h.r.binary("residual", Function::Add, middle, fed);
  }
  h.r.enter("head");
  h.r.output(h.relu("final_norm", x));
  const Graph g = h.r.take();
  const Lowering lowering =
      with({{"residual", "attention_norm"}, {"residual", "mlp_norm"}, {"residual", "final_norm"}});
  CHECK(said(g, lowering) ==
        "attention_norm output residual+mlp_norm down residual+attention_norm output "
        "residual+mlp_norm down residual+final_norm");
  // The first of them reads both operands and writes the sum, which the next residual reads, and
  // the norm.
  const Work w = work_of(g, {2, 3});
  CHECK(w.read[activations] == Count(120));
  CHECK(w.written[activations] == Count(120));
  // Nothing reads the last sum but the norm.
  const Work last = work_of(g, {g.nodes().size() - 2, g.nodes().size() - 1});
  CHECK(last.read[activations] == Count(120));
  CHECK(last.written[activations] == Count(60));
}

TEST_CASE("launches: a layer that is two behind is not joined") {
  const auto graph = [](int layer) {
    Hand h;
    h.r.enter("decoder", 0);
    const Value a = h.relu("a", h.x);
    h.r.enter("decoder", layer);
    h.r.output(h.relu("b", a));
    return h.r.take();
  };
  CHECK(said(graph(1), with({{"a", "b"}})) == "a+b");
  CHECK(said(graph(2), with({{"a", "b"}})) == "a b");
}

TEST_CASE("launches: lists of one kind of pass are left alone in the other") {
  const Recording r = record(tiny(), {}, fused);
  CHECK_FALSE(is_decode_step(r.prefill()));
  CHECK(is_decode_step(r.decode()));
  for (const auto& [in, prefill, decode] :
       {std::tuple(Launch::In::AnyPass, true, true), std::tuple(Launch::In::Prefill, true, false),
        std::tuple(Launch::In::Decode, false, true)}) {
    const Lowering l = with({{"gate", "up"}}, in);
    CHECK((said(r.prefill(), l).find("gate+up") != std::string::npos) == prefill);
    CHECK((said(r.decode(), l).find("gate+up") != std::string::npos) == decode);
  }
}

TEST_CASE("launches: fused operators have the FLOPs of the graph and fewer bytes") {
  const Recording r = record(tiny(), {}, eager);
  Lowering l = eager;
  l.launches = with({{"query", "key", "value"},
                     {"gate", "up"},
                     {"scale", "mask", "softmax"},
                     {"residual", "mlp_norm"}})
                   .launches;
  const SymbolValues values = r.symbols.resolve({2, 7, 1});
  const Work whole = total_work(fold(r.prefill(), eager));
  const Work launched = total_work(fold(r.prefill(), l));
  CHECK(launched.flops.at(values) == whole.flops.at(values));
  CHECK(launched.bytes().at(values) < whole.bytes().at(values));
  CHECK(launched.read[weights].at(values) == whole.read[weights].at(values));
}

TEST_CASE("launches: a mixture's gate and up are one grouped product, which reads its rows once") {
  Lowering l = with({{"expert_gate", "expert_up"}});
  const Recording r = record(load_model(catalog(), "mixtral-8x7b"), {}, l);
  const std::vector<OpGroup> groups = fold(r.decode(), l);
  const auto find = [](const std::vector<OpGroup>& in, const std::string& label) {
    const auto found =
        std::find_if(in.begin(), in.end(), [&](const OpGroup& g) { return g.label == label; });
    REQUIRE(found != in.end());
    return *found;
  };
  const OpGroup both = find(groups, "expert_gate+expert_up");
  const OpGroup gate = find(fold(r.decode(), {}), "expert_gate");
  CHECK(both.count == 32);
  CHECK(both.work.flops == 2 * gate.work.flops);
  CHECK(both.work.read[weights] == 2 * gate.work.read[weights]);
  CHECK(both.work.read[activations] == gate.work.read[activations]);
  CHECK(both.length == gate.length);
  CHECK(both.groups == gate.groups);
  CHECK(find(groups, "router").op == "linear");
  CHECK(find(groups, "expert_down").bandwidth_class == BandwidthClass::Experts);
}
