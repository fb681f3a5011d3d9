#include "tests/execute/oracle.h"

#include <cstdlib>
#include <span>

#include <doctest/doctest.h>

namespace kvcast::execute {
namespace {

struct Way {
  const char* name;
  Kernels attention;
  Kernels elementwise;
  Loops loops;
};

constexpr Way ways[]{
    {"fast tiled", Kernels::Fused, Kernels::Fused, Loops::Fast},
    {"fast eager", Kernels::Eager, Kernels::Eager, Loops::Fast},
    {"plain tiled", Kernels::Fused, Kernels::Fused, Loops::Counting},
    {"plain eager", Kernels::Eager, Kernels::Eager, Loops::Counting},
};

constexpr std::span<const Way> fast_ways = std::span(ways).first(2);

/// All; under a limit of lanes the fast ones, for plain loops have no vectors: execute.oracle_test
/// without the limit is their test.
std::span<const Way> ways_with_lanes() {
  return std::getenv("KVCAST_MAX_LANES") == nullptr ? std::span<const Way>(ways) : fast_ways;
}

SessionOptions options_of(const Way& way) {
  SessionOptions o;
  o.attention = way.attention;
  o.elementwise = way.elementwise;
  o.loops = way.loops;
  return o;
}

/// Calls `check` with the options of every case and way.
template <typename Check>
void for_all(std::span<const Way> some_ways, Check check) {
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    for (const Way& way : some_ways) {
      CAPTURE(name);
      CAPTURE(way.name);
      check(c, options_of(way));
    }
  }
}

TEST_CASE("oracle: every family's logits equal those of transformers, 1e-4 of their range") {
  for_all(ways_with_lanes(), [](const OracleCase& c, SessionOptions o) {
    o.logits = Logits::All;
    o.decoder_tokens = c.prompt[0].size();
    const Generation g = Session(c.checkpoint, o).run(c.request(c.prompt, 1));
    CHECK(relative_difference(g.logits, c.tensors.at("logits")) < 1e-4);
  });
}

TEST_CASE("oracle: 64 greedy tokens are those of transformers") {
  for_all(ways_with_lanes(), [](const OracleCase& c, SessionOptions o) {
    o.decoder_tokens = c.greedy_prompt[0].size();
    CHECK(Session(c.checkpoint, o).run(c.request(c.greedy_prompt, 64)).tokens == c.greedy);
  });
}

TEST_CASE("oracle: without the rows that no logits need, greedy tokens and last logits stay") {
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{3}}) {
      CAPTURE(name);
      CAPTURE(chunk);
      SessionOptions o;
      o.decoder_tokens = c.greedy_prompt[0].size();
      if (!c.checkpoint.architecture().encoder_decoder) o.chunk = chunk;
      const Generation full = Session(c.checkpoint, o).run(c.request(c.greedy_prompt, 64));
      o.skip_unread_rows = true;
      const Generation g = Session(c.checkpoint, o).run(c.request(c.greedy_prompt, 64));
      CHECK(g.tokens == c.greedy);
      CHECK(relative_difference(g.logits, full.logits) < 1e-5);
    }
  }
}

TEST_CASE("oracle: a prompt in chunks or token by token gives the logits of one piece") {
  for_all(fast_ways, [](const OracleCase& c, SessionOptions o) {
    if (c.checkpoint.architecture().encoder_decoder) return;
    o.logits = Logits::All;
    for (const std::uint64_t chunk : {std::uint64_t{1}, std::uint64_t{5}}) {
      CAPTURE(chunk);
      o.chunk = chunk;
      const Generation g = Session(c.checkpoint, o).run(c.request(c.prompt, 1));
      CHECK(relative_difference(g.logits, c.tensors.at("logits")) < 1e-4);
    }
  });
}

}  // namespace
}  // namespace kvcast::execute
