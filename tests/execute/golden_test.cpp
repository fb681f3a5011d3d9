#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>

#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

using nlohmann::ordered_json;

std::filesystem::path golden_file() {
  return std::filesystem::path(KVCAST_SOURCE_DIR) / "tests" / "execute" / "methods.golden.json";
}

/// What a method makes of a small model: every figure of a run that does not depend on the machine.
ordered_json run_method(const Method& method) {
  SessionOptions o;
  o.methods = parse_methods(method.example);
  const OracleCase c(case_for(o.methods));
  const Checkpoint checkpoint = checkpoint_for(c, o.methods);
  const Session session(checkpoint, o);
  const Generation g = session.run(c.request(c.prompt, 24));
  return {{"generated_tokens", g.tokens},
          {"flops", g.analytic_flops},
          {"bytes", g.analytic_bytes},
          {"kv_cache_bytes", g.kv_cache_bytes}};
}

// KVCAST_REGENERATE=1 writes the file anew; read the difference before you commit it.
TEST_CASE("golden: every method that runs gives the stored tokens and work") {
  ordered_json runs;
  for (const Method& method : methods()) {
    if (method.kind != MethodKind::Placement)
      runs[std::string(method.example)] = run_method(method);
  }
  if (std::getenv("KVCAST_REGENERATE") != nullptr) std::ofstream(golden_file()) << runs.dump(1);
  const nlohmann::json stored = read_json_file(golden_file());
  CHECK(stored.size() == runs.size());
  for (const auto& [example, run] : runs.items()) {
    CAPTURE(example);
    REQUIRE_MESSAGE(stored.contains(example), "a new method: KVCAST_REGENERATE=1 stores its run");
    CHECK(nlohmann::json(run) == stored.at(example));
  }
}

// tests/oracle/make_streaming.py runs transformers' weights with a cache of its own.
TEST_CASE("golden: streaming gives the tokens of an independent implementation") {
  const auto file = oracle_folder() / "streaming.json";
  const nlohmann::json cases = read_json_file(file);
  REQUIRE(!cases.empty());
  for (const nlohmann::json& expected : cases) {
    const OracleCase c(expected.at("checkpoint").get<std::string>());
    for (const Kernels attention : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(expected.at("checkpoint"));
      CAPTURE(expected.at("method"));
      SessionOptions o{.attention = attention, .elementwise = attention};
      o.methods = parse_methods(expected.at("method").get<std::string>());
      const Session session(c.checkpoint, o);
      const auto tokens = expected.at("greedy").get<std::vector<std::vector<TokenId>>>();
      CHECK(session.run(c.request(c.prompt, tokens[0].size())).tokens == tokens);
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
