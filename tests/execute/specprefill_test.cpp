// Speculative Prefill with the base as its own speculator.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/batch_order.h"
#include "tests/execute/oracle.h"
#include "tests/near.h"

namespace kvcast::execute {
namespace {

Session session_of(const OracleCase& c, const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  return {c.checkpoint, o};
}

// tests/oracle/make_specprefill.py computes the same in numpy and float64.
TEST_CASE("specprefill: importance, kept tokens and output are those of an independent program") {
  const OracleCase c("llama_mha");
  const nlohmann::json cases = read_json_file(oracle_folder() / "specprefill.json");
  REQUIRE(cases.size() == 6);
  for (const nlohmann::json& expected : cases) {
    const std::string method =
        "specprefill:keep=" + expected["keep"].dump() +
        ",lookahead=" + expected["lookahead"].dump() + ",pool=" + expected["pool"].dump() +
        (expected["chunk"] == 0 ? std::string() : ",chunk=" + expected["chunk"].dump());
    const auto tokens = expected["generated"].get<std::vector<TokenId>>();
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(method);
      const SessionOptions o{.attention = kernels, .elementwise = kernels};
      const Generation g =
          session_of(c, method, o)
              .run(c.request({expected["prompt"].get<std::vector<TokenId>>()}, tokens.size()));
      const auto importance = expected["importance"].get<std::vector<double>>();
      REQUIRE(g.importance[0].size() == importance.size());
      for (std::size_t i = 0; i < importance.size(); ++i) {
        CHECK(g.importance[0][i] == near(importance[i]).epsilon(1e-5));  // fp32
      }
      CHECK(g.kept[0] == expected["kept"].get<std::vector<std::uint64_t>>());
      CHECK(g.tokens[0] == tokens);
    }
  }
}

TEST_CASE("specprefill: a base that is its own speculator and keeps all makes one cache twice") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Session session = session_of(c, "specprefill:keep=1,lookahead=2");
  const Recording& recording = session.recording();
  std::map<std::pair<int, std::string>, std::vector<float>> speculator, base;
  Request request = c.request(c.prompt, 3);
  request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[run.node];
    if (node.label != "cache_keys" && node.label != "cache_values") return;
    const bool first = &graph == &recording.helpers()[0].graph;
    if (!first && &graph != &recording.prefill()) return;
    std::vector<float>& rows = (first ? speculator : base)[{node.layer, node.label}];
    const Operand& out = run.call->output;
    for (std::size_t b = 0; b < out.shape[0]; ++b) {
      rows.insert(rows.end(), out.sequence(b), out.sequence(b) + out.shape[1] * out.shape[2]);
    }
  };
  const Generation g = session.run(request);
  CHECK(base.size() == 2 * c.checkpoint.architecture().num_hidden_layers());
  CHECK(speculator == base);
  CHECK(g.tokens == session_of(c, "plain").run(c.request(c.prompt, 3)).tokens);
}

TEST_CASE("specprefill: a look-ahead of 1 is the prompt's own query and runs no decode step") {
  const OracleCase c("llama_mha");
  const auto steps = [&](const std::string& lookahead) {
    const Session session = session_of(c, "specprefill:keep=0.5,lookahead=" + lookahead);
    const Generation g = session.run(c.request(c.prompt, 2));
    std::map<std::string, std::uint64_t> by_pass;
    for (std::size_t i = 0; i < g.helper_steps.size(); ++i) {
      by_pass[session.recording().helpers()[i].name] = g.helper_steps[i];
    }
    return by_pass;
  };
  using Steps = std::map<std::string, std::uint64_t>;
  CHECK(steps("1") == Steps{{"speculator prefill", 1}, {"score", 1}});
  CHECK(steps("4") == Steps{{"speculator prefill", 1}, {"look-ahead", 3}, {"score", 1}});
}

// methods.md, section 3: without a look-ahead the keys are all that is kept of the speculator's
// prompt; its values have no reader after their own layer's attention.
TEST_CASE("specprefill: a look-ahead of 1 caches the speculator's keys and no values") {
  const OracleCase c("llama_gqa_llama3_rope");
  const auto cached = [&](const std::string& method) {
    const Session session = session_of(c, method);
    std::map<std::string, std::size_t> layers;  // by label of what is appended
    Request request = c.request(c.prompt, 2);
    request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
      const Node& node = graph.nodes()[run.node];
      if (&graph != &session.recording().helpers()[0].graph) return;
      if (std::holds_alternative<CacheAppend>(node.op)) ++layers[node.label];
    };
    session.run(request);
    return layers;
  };
  using Layers = std::map<std::string, std::size_t>;
  const std::size_t n = c.checkpoint.architecture().num_hidden_layers();
  const Layers keys{{"cache_keys", n}, {"cache_query", n}};
  const Layers all{{"cache_keys", n}, {"cache_query", n}, {"cache_values", n}};
  CHECK(cached("specprefill:keep=0.5,lookahead=1") == keys);
  CHECK(cached("static-prune:keep=0.5,probe=1") == keys);
  CHECK(cached("specprefill:keep=0.5,lookahead=2") == all);
  CHECK(cached("specprefill:keep=0.5,lookahead=1,reuse=kept") == all);
}

TEST_CASE("specprefill: with stop tokens a batch runs apart, each sequence as it would alone") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Session session = session_of(c, "specprefill:keep=0.5,lookahead=6");
  Request request = c.request(c.prompt, 6);
  CHECK_FALSE(runs_one_by_one(session, request));
  // A token that ends the look-ahead of the first sequence early.
  const auto plain = session_of(c, "plain").run(request).tokens;
  request.stop_tokens = {plain[0][1]};
  CHECK(runs_one_by_one(session, request));
  const Generation together = session.run(request);
  std::vector<std::uint64_t> steps;
  for (std::size_t b = 0; b < c.prompt.size(); ++b) {
    Request one = request;
    one.tokens = {c.prompt[b]};
    CHECK_FALSE(runs_one_by_one(session, one));
    const Generation alone = session.run(one);
    CHECK(together.tokens[b] == alone.tokens[0]);
    CHECK(together.kept[b] == alone.kept[0]);
    CHECK(together.importance[b] == alone.importance[0]);
    steps.push_back(alone.helper_steps[1]);
  }
  CHECK(steps[0] < 5);
  CHECK(together.helper_steps[1] == steps[0] + steps[1]);
}

}  // namespace
}  // namespace kvcast::execute
