#include <algorithm>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/execute/generate.h"
#include "model/execute/machine_probe.h"
#include "model/families/config_reader.h"

namespace kvcast::execute {
namespace {

/// Large enough that every kernel shares its work among threads.
Architecture wide() {
  return read_config(nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 320,
    "vocab_size": 1003, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 5,
    "intermediate_size": 900})"),
                     "wide", "wide.json");
}

Generation run_on(int threads, Kernels kernels) {
  const int before = use_threads(0);
  use_threads(threads);
  const Checkpoint checkpoint(wide(), 7);
  SessionOptions o{.attention = kernels, .elementwise = kernels};
  o.logits = Logits::All;
  const Session session(checkpoint, o);
  Request request;
  request.tokens.resize(2);
  for (TokenId i = 0; i < 210; ++i) {
    request.tokens[0].push_back(i * 37 % 1003);
    request.tokens[1].push_back(i * 53 % 1003);
  }
  request.output_len = 12;
  Generation g = session.run(request);
  use_threads(before);
  return g;
}

TEST_CASE("threads: one, two and three give the same numbers, to the last bit") {
  for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
    CAPTURE(kernels == Kernels::Eager);
    const Generation one = run_on(1, kernels);
    CHECK(one.logits.size() == 2 * 210 * 1003);
    for (const int threads : {2, 3}) {
      CAPTURE(threads);
      const Generation more = run_on(threads, kernels);
      CHECK(more.tokens == one.tokens);
      CHECK(std::ranges::equal(more.logits, one.logits));
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
