// Progressive pruning whose decode steps take dropped tokens back.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/batch_order.h"
#include "tests/execute/oracle.h"
#include "tests/execute/relative_difference.h"
#include "tests/near.h"

namespace kvcast::execute {
namespace {

using Steps = std::vector<std::vector<std::uint64_t>>;

struct LazyCase {
  const Checkpoint* checkpoint;
  std::string method;
  std::vector<TokenId> prompt;
  std::vector<TokenId> generated;
  std::vector<std::uint64_t> cached;  ///< tokens with keys and values at the end, by layer
  Steps revived;                      ///< by step, by layer from the second on
};

/// Six layers that see all tokens, or eight of which every other one has a window.
const Checkpoint& lazy_checkpoint(bool windowed = false) {
  static const Checkpoint checkpoint(oracle_folder() / "lazyllm");
  static const Checkpoint with_windows(oracle_folder() / "lazyllm_windowed");
  return windowed ? with_windows : checkpoint;
}

// tests/oracle/make_lazyllm.py computes them in numpy and float64.
std::vector<LazyCase> lazy_cases() {
  std::vector<LazyCase> cases;
  for (const bool windowed : {false, true}) {
    const char* folder = windowed ? "lazyllm_windowed" : "lazyllm";
    for (const nlohmann::json& c : read_json_file(oracle_folder() / folder / "results.json")) {
      cases.push_back({&lazy_checkpoint(windowed),
                       "lazyllm:begin=" + c["begin"].dump() + ",end=" + c["end"].dump() +
                           ",from=" + c["from"].dump() + ",to=" + c["to"].dump(),
                       c["prompt"].get<std::vector<TokenId>>(),
                       c["generated"].get<std::vector<TokenId>>(),
                       c["cached"].get<std::vector<std::uint64_t>>(), c["revived"].get<Steps>()});
    }
  }
  REQUIRE(cases.size() == 7);
  return cases;
}

Session session_of(const std::string& method, SessionOptions o = {},
                   const Checkpoint& checkpoint = lazy_checkpoint()) {
  o.methods = parse_methods(method);
  return {checkpoint, o};
}

Session session_of(const LazyCase& c, SessionOptions o = {}) {
  return session_of(c.method, std::move(o), *c.checkpoint);
}

Request request_of(const LazyCase& c, std::uint64_t output_len) {
  Request r;
  r.tokens = {c.prompt};
  r.output_len = output_len;
  return r;
}

TEST_CASE("lazyllm: output and revived tokens are those of an independent program") {
  for (const LazyCase& c : lazy_cases()) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      for (const DType dtype : {DType::FP32, DType::FP64}) {
        CAPTURE(c.method);
        const Session session =
            session_of(c, {.attention = kernels, .elementwise = kernels, .dtype = dtype});
        const Generation g = session.run(request_of(c, c.generated.size()));
        CHECK(g.tokens[0] == c.generated);
        REQUIRE(g.revived.size() == c.revived.size());
        const auto& groups = session.recording().revived;
        CHECK(groups.size() >= 1);
        for (std::size_t step = 0; step < c.revived.size(); ++step) {
          REQUIRE(g.revived[step].size() == groups.size());
          for (std::size_t i = 0; i < groups.size(); ++i) {
            CAPTURE(step);
            CHECK(g.revived[step][i] == c.revived[step][groups[i].first_layer - 1]);
          }
        }
      }
    }
  }
}

TEST_CASE("lazyllm: logits of all positions are those of the tokens that reach the head") {
  for (const LazyCase& c : lazy_cases()) {
    CAPTURE(c.method);
    const Generation g = session_of(c, {.logits = Logits::All}).run(request_of(c, 1));
    const Generation wide =
        session_of(c, {.logits = Logits::All, .dtype = DType::FP64}).run(request_of(c, 1));
    const std::size_t rows = g.logits_shape[1];
    const std::size_t vocab = g.logits_shape[2];
    CHECK(rows < c.prompt.size());
    CHECK(wide.logits_shape == g.logits_shape);
    REQUIRE(g.logits.size() == rows * vocab);
    REQUIRE(wide.logits64.size() == rows * vocab);
    const std::vector<double> ours(g.logits.begin(), g.logits.end());
    CHECK(relative_difference(std::span<const double>(ours), wide.logits64) < 1e-5);
    const auto last = g.logits.last(vocab);
    const auto best = std::max_element(last.begin(), last.end()) - last.begin();
    CHECK(static_cast<TokenId>(best) == c.generated[0]);
  }
}

// Keys and values [16] of each cached token and of the last one, a number that names the token once
// in each group of layers, and an Aux Cache of states [16] and names, 4 bytes each.
TEST_CASE("lazyllm: the cache holds the tokens that each layer has seen, and the Aux Cache") {
  for (const LazyCase& c : lazy_cases()) {
    CAPTURE(c.method);
    const Session session = session_of(c);
    const Generation g = session.run(request_of(c, c.generated.size()));
    std::uint64_t numbers = 0;
    for (const std::uint64_t cached : c.cached) numbers += 2 * 16 * (cached + 1);
    for (const RevivedTokens& r : session.recording().revived) {
      numbers += c.cached[r.first_layer] + 1;
    }
    const std::size_t last = c.cached.size() - 1;
    std::uint64_t revived = 0;
    std::uint64_t dropped = c.prompt.size() + c.generated.size() - 1 - c.cached[last];
    for (const auto& step : c.revived) revived += step[last - 1];
    dropped += revived;
    CHECK(g.kv_cache_bytes == 4 * (numbers + dropped * (16 + 1)));
  }
}

TEST_CASE("lazyllm: revived shares are of the tokens that prefill dropped, by group and step") {
  for (const LazyCase& c : lazy_cases()) {
    CAPTURE(c.method);
    const Session session = session_of(c);
    const Generation g = session.run(request_of(c, c.generated.size()));
    const std::size_t steps = c.generated.size() - 1;
    REQUIRE(steps > 1);
    double first = 0;
    double all = 0;
    double dropped = 0;
    for (const RevivedTokens& r : session.recording().revived) {
      double here = 0;
      for (const auto& step : c.revived) here += static_cast<double>(step[r.first_layer - 1]);
      const double kept = static_cast<double>(c.cached[r.first_layer] - steps) - here;
      dropped += static_cast<double>(c.prompt.size()) - kept;
      first += static_cast<double>(c.revived[0][r.first_layer - 1]);
      all += here;
    }
    const RevivedShares shares = revived_shares(session.recording(), g, c.prompt.size());
    CHECK(shares.first_step == near(first / dropped));
    CHECK(shares.later_steps == near((all - first) / dropped / static_cast<double>(steps - 1)));
    const Generation two = session.run(request_of(c, 2));
    const RevivedShares of_two = revived_shares(session.recording(), two, c.prompt.size());
    CHECK(of_two.first_step == shares.first_step);
    CHECK(of_two.later_steps == 0);
  }
}

TEST_CASE("lazyllm: decode steps do the work that the recorder says, revived tokens included") {
  for (const LazyCase& c : lazy_cases()) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(c.method);
      const SessionOptions o{
          .attention = kernels, .elementwise = kernels, .loops = Loops::Counting};
      const Generation g = session_of(c, o).run(request_of(c, c.generated.size()));
      CHECK(g.tokens[0] == c.generated);
      CHECK(g.counted.flops == g.analytic_flops);
      CHECK(g.counted.bytes() == g.analytic_bytes);
    }
  }
}

TEST_CASE("lazyllm: a layer sees no token twice, and what it revives it has not seen before") {
  for (const LazyCase& c : lazy_cases()) {
    CAPTURE(c.method);
    const Session session = session_of(c);
    std::map<int, std::set<std::uint64_t>> seen;  // by first layer of a group
    Request request = request_of(c, c.generated.size());
    std::size_t appended = 0;
    request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
      const Node& node = graph.nodes()[run.node];
      if (node.label != "cache_tokens") return;
      const Operand& rows = run.call->inputs[1];
      for (std::size_t i = 0; i < rows.shape[1]; ++i) {
        CHECK(seen[node.layer].insert(static_cast<std::uint64_t>(rows.data[i])).second);
        ++appended;
      }
    };
    session.run(request);
    std::uint64_t expected = 0;
    for (const RevivedTokens& r : session.recording().revived) expected += c.cached[r.first_layer];
    CHECK(appended == expected);
  }
}

TEST_CASE("lazyllm: sequences revive differently many tokens and run one after another") {
  const LazyCase c = lazy_cases()[3];
  const Session session = session_of(c);
  Request request = request_of(c, c.generated.size());
  request.tokens.push_back(lazy_cases()[1].prompt);
  CHECK(runs_one_by_one(session, request));
  const Generation together = session.run(request);
  CHECK(together.tokens[0] == c.generated);
  request.tokens.erase(request.tokens.begin());
  CHECK(together.tokens[1] == session.run(request).tokens[0]);
  // The first token needs no decode step.
  request.output_len = 1;
  request.tokens.push_back(c.prompt);
  CHECK_FALSE(runs_one_by_one(session, request));
  CHECK(session.run(request).tokens[1][0] == c.generated[0]);
}

}  // namespace
}  // namespace kvcast::execute
