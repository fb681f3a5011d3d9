// Tokens dropped before layers with windows and chunks: these go by the positions of the tokens
// that are left, not by their places in the cache.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/graph/work.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

using Sequences = std::vector<std::vector<std::uint64_t>>;

Session session_of(const OracleCase& c, const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  return {c.checkpoint, o};
}

/// Pairs that a layer of this window or chunk shows: queries at `positions` from index `first` on.
std::uint64_t seen_pairs(const std::vector<std::uint64_t>& positions, std::size_t first,
                         std::uint64_t window, std::uint64_t chunk) {
  std::uint64_t pairs = 0;
  for (std::size_t i = first; i < positions.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const bool near = window == 0 || positions[i] - positions[j] < window;
      const bool together = chunk == 0 || positions[i] / chunk == positions[j] / chunk;
      pairs += near && together ? 1 : 0;
    }
  }
  return pairs;
}

// tests/oracle/make_kept_windows.py has transformers read the kept tokens at their own positions,
// with masks by position.
TEST_CASE("kept windows: kept tokens, logits and greedy tokens are those of transformers") {
  const nlohmann::json cases = read_json_file(oracle_folder() / "kept_windows.json");
  REQUIRE(cases.size() == 12);
  for (const nlohmann::json& expected : cases) {
    const OracleCase c(expected.at("checkpoint").get<std::string>());
    const auto method = expected.at("method").get<std::string>();
    CAPTURE(expected.at("checkpoint"));
    CAPTURE(method);
    std::vector<float> logits;
    for (const auto& row : expected.at("logits")) {
      for (const auto& x : row) logits.push_back(x.get<float>());
    }
    const auto greedy = expected.at("greedy").get<std::vector<std::vector<TokenId>>>();
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      for (const Loops loops : {Loops::Fast, Loops::Counting}) {
        const Session session =
            session_of(c, method, {.attention = kernels, .elementwise = kernels, .loops = loops});
        const Generation g = session.run(c.request(c.prompt, greedy[0].size()));
        CHECK(g.kept == expected.at("kept").get<Sequences>());
        CHECK(g.tokens == greedy);
        REQUIRE(g.logits.size() == logits.size());
        CHECK(relative_difference(g.logits, logits) < 1e-5);
        if (loops == Loops::Fast) continue;
        CHECK(g.counted.flops == g.analytic_flops);
        CHECK(g.counted.bytes() == g.analytic_bytes);
      }
    }
  }
}

TEST_CASE("kept windows: a run finds the pairs that windows and chunks show, prefill and decode") {
  for (const char* name : {"gemma3_text", "gpt_oss", "llama4_text", "mistral"}) {
    const OracleCase c(name);
    const Architecture& a = c.checkpoint.architecture();
    const Session session = session_of(c, "random-prune:keep=0.5,seed=7");
    Request request = c.request(c.prompt, 9);
    struct Read {
      std::size_t queries;
      std::uint64_t window;
      std::uint64_t chunk;
      std::uint64_t pairs;
    };
    std::vector<Read> reads;
    request.on_node = [&](const Graph&, const NodeRun& run, std::span<const std::uint64_t> values) {
      const auto* op = std::get_if<TiledAttention>(&run.call->node.op);
      if (op == nullptr || !op->has_first) return;
      const LayerShape& layer = a.decoder.layers[static_cast<std::size_t>(run.call->node.layer)];
      reads.push_back({run.call->inputs[0].shape[1], layer.sliding_window, layer.attention_chunk,
                       op->visible_pairs.at(values)});
    };
    const Generation g = session.run(request);
    const auto windowed =
        static_cast<std::size_t>(std::count_if(a.decoder.layers.begin(), a.decoder.layers.end(),
                                               [](const LayerShape& l) { return !sees_all(l); }));
    REQUIRE(reads.size() == windowed * 9);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const std::size_t step = i / windowed;  // 0: prefill
      std::uint64_t pairs = 0;
      for (std::vector<std::uint64_t> positions : g.kept) {
        const std::size_t first = step == 0 ? 0 : positions.size() + step - 1;
        for (std::size_t t = 0; t < step; ++t) positions.push_back(c.prompt[0].size() + t);
        pairs += seen_pairs(positions, first, reads[i].window, reads[i].chunk);
      }
      CAPTURE(name);
      CAPTURE(step);
      CHECK(reads[i].pairs == pairs);
    }
  }
}

// With every other token kept, the expected share of a window is what a run finds, but for its
// edges.
TEST_CASE("kept windows: estimates expect a window to hold the share of its tokens that is kept") {
  Architecture a = OracleCase("gemma3_text").checkpoint.architecture();
  for (LayerShape& layer : a.decoder.layers)
    layer.sliding_window = layer.sliding_window > 0 ? 64 : 0;
  const Recording recording = record(a, parse_methods("random-prune:keep=0.5"), {});
  const auto pairs = [&](const Graph& graph, std::uint64_t kv_len) {
    const SymbolValues values = recording.symbols.resolve({1, 400, kv_len});
    for (const Node& node : graph.nodes()) {
      const auto* op = std::get_if<TiledAttention>(&node.op);
      if (op != nullptr && op->has_first) return op->visible_pairs.at(values);
    }
    return std::uint64_t{0};
  };
  // 200 kept tokens; 32 of each window: 32·33/2 + 168·32.
  CHECK(pairs(recording.prefill(), 200) == 528 + 168 * 32);
  // The first decode step: itself, and half of the 63 tokens before it, rounded up.
  CHECK(pairs(recording.decode(), 201) == 1 + 32);
  CHECK(pairs(recording.decode(), 220) == 20 + 22);
  CHECK(pairs(recording.decode(), 264) == 64);
  CHECK(pairs(recording.decode(), 500) == 64);
}

TEST_CASE("kept windows: scores need a layer that sees all tokens, and ranks a model without") {
  const auto says = [](const char* name, const std::string& methods, const std::string& words) {
    const OracleCase c(name);
    const std::string line = message_of([&] { session_of(c, methods); });
    CAPTURE(line);
    CHECK(line.find(words) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  says("mistral", "specprefill:keep=0.5", "the speculator");
  says("mistral", "lazyllm:begin=0.5,end=0.5", "whose layers all have windows");
  says("gemma2", "static-prune:keep=0.5,probe=0.1", "the probed layers of");
  const OracleCase c("gemma2");
  const std::string line = message_of([&] {
    SessionOptions o{.methods = parse_methods("random-prune:keep=0.5+kvr:p=2")};
    o.share = RankShare{{4, 5}, 0};
    const Session session(c.checkpoint, o);
  });
  CAPTURE(line);
  CHECK(line.find("those go by the tokens' positions, which ranks do not send") !=
        std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
