// Decoding that reads given tokens.
#include <doctest/doctest.h>

#include "tests/execute/oracle.h"
#include "tests/execute/relative_difference.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

struct Said {
  std::vector<std::vector<float>> logits;  ///< of each pass, the last position's
  Generation g;
};

Said run(const Session& session, Request request) {
  Said said;
  request.on_logits = [&](const Output& out) {
    const std::size_t last = out.shape.back();
    const std::size_t end = out.shape.elements();
    said.logits.emplace_back(out.data.get() + end - last, out.data.get() + end);
  };
  said.g = session.run(request);
  return said;
}

TEST_CASE("continuation: a model that is given its own tokens says the same") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Session session(c.checkpoint, {});
  Request request = c.request({c.prompt[0]}, 5);
  const Said own = run(session, request);
  const auto& tokens = own.g.tokens[0];
  request.continuation = {{tokens.begin(), tokens.end() - 1}};
  request.stop_tokens = {tokens[0]};  // which then ends nothing
  const Said given = run(session, request);
  REQUIRE(own.logits.size() == 5);
  CHECK(given.g.tokens == own.g.tokens);
  CHECK(given.logits == own.logits);
}

TEST_CASE("continuation: given tokens are read as if they stood in the prompt") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Session session(c.checkpoint, {});
  const auto& whole = c.prompt[0];
  const std::size_t cut = whole.size() - 4;
  Request request = c.request({{whole.begin(), whole.begin() + static_cast<long>(cut)}}, 5);
  request.continuation = {{whole.begin() + static_cast<long>(cut), whole.end()}};
  const Said said = run(session, request);
  REQUIRE(said.logits.size() == 5);
  for (std::size_t step = 0; step < 5; ++step) {
    const Generation g =
        session.run(c.request({{whole.begin(), whole.begin() + static_cast<long>(cut + step)}}, 1));
    CHECK(relative_difference(std::span<const float>(said.logits[step]), g.logits) < 1e-5);
    CHECK(said.g.tokens[0][step] == g.tokens[0][0]);
  }
}

TEST_CASE("continuation: each sequence of a batch reads its own, also one by one") {
  const OracleCase c("llama_gqa_llama3_rope");
  REQUIRE(c.prompt.size() > 1);
  for (const char* method : {"plain", "specprefill:keep=0.5,lookahead=2,chunk=8"}) {
    CAPTURE(method);
    SessionOptions o;
    o.methods = parse_methods(method);
    const Session session(c.checkpoint, o);
    Request request = c.request({c.prompt[0], c.prompt[1]}, 4);
    request.continuation = {{3, 1, 4}, {1, 5, 9}};
    const Generation both = session.run(request);
    for (std::size_t b = 0; b < 2; ++b) {
      Request one = c.request({c.prompt[b]}, 4);
      one.continuation = {request.continuation[b]};
      CHECK(session.run(one).tokens[0] == both.tokens[b]);
    }
  }
}

TEST_CASE("continuation: wrong lengths and ids are refused") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Session session(c.checkpoint, {});
  const auto refused = [&](std::vector<std::vector<TokenId>> continuation) {
    Request request = c.request({c.prompt[0]}, 3);
    request.continuation = std::move(continuation);
    return message_of([&] { session.run(request); });
  };
  CHECK(refused({{1, 2}}) == "(no Error was thrown)");
  CHECK(refused({{1}}).find("one less than the output") != std::string::npos);
  CHECK(refused({{1, 2}, {1, 2}}).find("expected 1 of 2 tokens") != std::string::npos);
  CHECK(refused({{1, 1000000}}).find("continuation: got token id 1000000") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
