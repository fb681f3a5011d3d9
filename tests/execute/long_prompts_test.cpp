// Texts beyond the context that a model was trained for, whose rotations change there.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/execute/oracle.h"
#include "tests/execute/relative_difference.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

constexpr std::size_t batch = 2;

TEST_CASE("long prompts: logits and greedy tokens are those of transformers, pass by pass") {
  std::size_t cases = 0;
  for (const nlohmann::json& c : read_json_file(oracle_folder() / "long_prompts.json")) {
    const std::string name = c["checkpoint"];
    CAPTURE(name);
    CAPTURE(c["chunk"].dump());
    const Checkpoint checkpoint(oracle_folder() / name);
    std::vector<float> expected;
    for (const nlohmann::json& row : c["logits"]) {
      const auto numbers = row.get<std::vector<float>>();
      expected.insert(expected.end(), numbers.begin(), numbers.end());
    }
    Request request;
    request.tokens = c["prompt"].get<std::vector<std::vector<TokenId>>>();
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      for (const Loops loops : {Loops::Fast, Loops::Counting}) {
        SessionOptions o;
        o.attention = o.elementwise = kernels;
        o.loops = loops;
        o.chunk = c["chunk"].get<std::uint64_t>();
        Session session(checkpoint, o);
        request.output_len = 1;
        const Generation first = session.run(request);
        REQUIRE(first.logits.size() == batch * checkpoint.architecture().vocab_size);
        CHECK(relative_difference(first.logits, expected) < 1e-4);
        const auto greedy = c["greedy"].get<std::vector<std::vector<TokenId>>>();
        request.output_len = greedy[0].size();
        CHECK(session.run(request).tokens == greedy);
      }
    }
    ++cases;
  }
  CHECK(cases == 4);
}

// A cache of chunks of 8 tokens holds more before the border than at the end.
TEST_CASE("long prompts: an output may end just behind a chunk's border") {
  const OracleCase c("llama4_text");
  REQUIRE(c.checkpoint.architecture().decoder.layers[0].attention_chunk == 8);
  const Session session(c.checkpoint, {});
  Request request;
  request.tokens = {{5, 6, 7}};
  request.output_len = 13;
  const std::vector<TokenId> longer = session.run(request).tokens[0];
  for (request.output_len = 1; request.output_len < 13; ++request.output_len) {
    CAPTURE(request.output_len);
    CHECK(session.run(request).tokens[0] ==
          std::vector<TokenId>(longer.begin(),
                               longer.begin() + static_cast<std::ptrdiff_t>(request.output_len)));
  }
}

TEST_CASE("long prompts: what would mix rotations, or turn cached keys back, is refused") {
  const auto refusal = [](const char* name, std::size_t prompt, SessionOptions o) {
    Request request;
    request.tokens = {std::vector<TokenId>(prompt, 7)};
    request.output_len = 4;
    return message_of([&] { Session(Checkpoint(oracle_folder() / name), o).run(request); });
  };
  // Phi-3's short factors hold for 128 positions, then its cache would have to be read again.
  CHECK(has(refusal("phi3_longrope", 126, {}), "at most 128"));
  CHECK(has(refusal("phi3_longrope", 140, {.chunk = 100}), "cached keys"));
  CHECK_FALSE(has(refusal("phi3_longrope", 125, {}), "at most 128"));  // the last is not fed back
  SessionOptions streaming;
  streaming.methods = parse_methods("streaming:sinks=2,window=6");
  CHECK(has(refusal("llama_dynamic", 29, streaming), "without methods"));
}

}  // namespace
}  // namespace kvcast::execute
