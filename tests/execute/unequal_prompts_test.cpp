// Batches whose prompts have different lengths.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/batch_order.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

/// A session whose methods may name "small", a speculator of another depth with random weights.
Session session_with(const OracleCase& c, const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  o.open = [&c](const std::string&) {
    Architecture a = c.checkpoint.architecture();
    a.origin.clear();
    a.decoder.layers.resize(1);
    return Checkpoint(a, 5);
  };
  return {c.checkpoint, o};
}

// Kept counts and cache lengths are each prompt's own; random pruning draws sequence b with the
// seed plus b, alone too.
TEST_CASE("unequal prompts: they run one by one, each as it would alone") {
  const OracleCase c("llama_gqa_llama3_rope");
  const std::vector<TokenId>& p = c.prompt[0];
  const std::vector<std::vector<TokenId>> prompts{
      p, {p.begin(), p.begin() + 5}, {p.begin(), p.begin() + 1}, {p.begin() + 2, p.end()}};
  for (const std::string method :
       {"plain", "specprefill:keep=0.5,lookahead=3", "specprefill:keep=0.5,speculator=small,pool=3",
        "specprefill:keep=0.5,reuse=kept", "static-prune:keep=0.5", "random-prune:keep=0.5,seed=7",
        "lazyllm:begin=0.8,end=0.4,from=0.2", "streaming:sinks=1,window=4"}) {
    CAPTURE(method);
    const Session session = session_with(c, method, {.loops = Loops::Counting});
    Request request = c.request(prompts, 4);
    CHECK(runs_one_by_one(session, request));
    const Generation together = session.run(request);
    REQUIRE(together.tokens.size() == prompts.size());
    std::uint64_t flops = 0, cache = 0;
    std::size_t first_logit = 0;
    for (std::size_t b = 0; b < prompts.size(); ++b) {
      const bool random = method.starts_with("random-prune");
      const Session drawn =
          session_with(c, random ? "random-prune:keep=0.5,seed=" + std::to_string(7 + b) : method,
                       {.loops = Loops::Counting});
      const Generation alone = drawn.run(c.request({prompts[b]}, 4));
      CHECK(together.tokens[b] == alone.tokens[0]);
      if (!alone.kept.empty()) CHECK(together.kept[b] == alone.kept[0]);
      if (!alone.importance.empty()) CHECK(together.importance[b] == alone.importance[0]);
      const auto logits = together.logits.subspan(first_logit, alone.logits.size());
      CHECK(std::equal(logits.begin(), logits.end(), alone.logits.begin()));
      first_logit += alone.logits.size();
      flops += alone.analytic_flops;
      cache += alone.kv_cache_bytes;
    }
    CHECK(together.logits.size() == first_logit);
    CHECK(together.analytic_flops == flops);
    CHECK(together.counted.flops == flops);
    CHECK(together.kv_cache_bytes == cache);
  }
}

TEST_CASE("unequal prompts: what cannot run one by one, and a wrong prompt among several") {
  const OracleCase c("llama_gqa_llama3_rope");
  int passes = 0;
  Request request = c.request({{5, 9, 2}, {7, 1}}, 3);
  request.on_pass = [&](std::uint64_t, std::uint64_t) { ++passes; };
  const auto refused = [&](const Session& session, const Request& r, const std::string& part) {
    const std::string line = message_of([&] { session.run(r); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(passes == 0);
  };
  refused(session_with(c, "plain", {.logits = Logits::All}), request,
          "prompts of different lengths");
  const Session plain = session_with(c, "plain");
  request.continuation = {{1, 2}};
  refused(plain, request, "continuation");
  request.continuation = {};
  request.tokens[1] = {};
  refused(plain, request, "no token");
  request.tokens[1] = {7, 100000};
  refused(plain, request, "token id 100000 at position 1");
  request.tokens[1] = {7, 1};
  // Pooled over more neighbours than the second prompt has.
  refused(session_with(c, "specprefill:keep=0.5,pool=7"), request,
          "at most 5 for a prompt of 2 tokens");
}

}  // namespace
}  // namespace kvcast::execute
