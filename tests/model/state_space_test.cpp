#include <cstdint>
#include <string>
#include <tuple>
#include <variant>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"
#include "model/record/step_recording.h"
#include "tests/model/tiny_models.h"
#include "tests/near.h"

using namespace kvcast;

namespace {

/// All in 16 bits.
Recording recorded(const std::string& model, bool chunked = false) {
  RecordOptions options;
  options.chunked = chunked;
  return record(load_model(catalog(), model), {}, {}, options);
}

/// Work of all scans of a pass.
Work scans(const Graph& graph) {
  Work sum;
  for (const Node& node : graph.nodes()) {
    if (std::holds_alternative<StateScan>(node.op)) sum += work(graph, node);
  }
  return sum;
}

std::uint64_t num_scans(const Graph& graph) {
  std::uint64_t n = 0;
  for (const Node& node : graph.nodes()) n += std::holds_alternative<StateScan>(node.op);
  return n;
}

}  // namespace

TEST_CASE("state spaces: bytes of a sequence, as published/models_today.csv counts them") {
  struct Case {
    const char* model;
    std::uint64_t state_bytes;
    std::uint64_t per_token;
    std::uint64_t active;
  };
  for (const Case& c : {Case{"qwen3-next-80b-a3b", 77856768, 24576, 3874929408},
                        {"qwen3.5-35b-a3b", 64880640, 20480, 3454988928},
                        {"qwen3.5-397b-a17b", 193167360, 30720, 17349040896},
                        {"granite-4.0-h-tiny", 57581568, 8192, 1465470528},
                        {"granite-4.0-h-1b", 57581568, 8192, 1461538368},
                        {"falcon-h1-1.5b", 76185600, 24576, 1554789760},
                        {"nemotron-h-56b", 914817024, 40960, 56324350464},
                        {"jamba-1.5-large", 74317824, 36864, 94149338592}}) {
    CAPTURE(c.model);
    const Recording r = recorded(c.model);
    CHECK(r.active_parameters == c.active);
    CHECK(r.kv_cache_bytes_per_token == Count(c.per_token));
    for (const std::uint64_t tokens : {1u, 100u, 5000u}) {
      const SymbolValues sizes = r.symbols.resolve({3, 1, tokens});
      CHECK(r.state_bytes.at(sizes) == 3 * c.state_bytes);
      CHECK(r.kv_cache_bytes.at(sizes) == 3 * (c.state_bytes + tokens * c.per_token));
    }
  }
}

TEST_CASE("state spaces: a step reads and writes the state, and does little else") {
  // Inner width, state, heads: 5·I·N FLOPs a layer (Mamba-2), 7·nv·dk·dv (Gated DeltaNet), as the
  // recurrence has it; what else there is, is smaller by the state's width or the head's.
  for (const auto& [model, flops, elements] :
       {std::tuple{"granite-4.0-h-tiny", 5.0 * 3072 * 128, 3072 * 128},
        {"qwen3-next-80b-a3b", 7.0 * 32 * 128 * 128, 32 * 128 * 128}}) {
    CAPTURE(model);
    const Recording r = recorded(model);
    const Work w = scans(r.decode());
    const std::uint64_t layers = num_scans(r.decode());
    const SymbolValues sizes = r.symbols.resolve({1, 1, 101});
    const double of_layer = static_cast<double>(w.flops.at(sizes)) / static_cast<double>(layers);
    CHECK(of_layer >= flops);
    CHECK(of_layer < 1.05 * flops);
    const auto cache = static_cast<std::size_t>(Storage::KvCache);
    const auto state = static_cast<std::uint64_t>(4 * elements);
    CHECK(w.read[cache].at(sizes) == layers * state);
    CHECK(w.written[cache].at(sizes) == layers * state);
  }
}

TEST_CASE("state spaces: Mamba-1 decays each number of a state by itself") {
  const Recording r = recorded("jamba-1.5-large");
  CHECK(num_scans(r.prefill()) == 63);
  for (const Graph* pass : {&r.prefill(), &r.decode()}) {
    for (const Node& node : pass->nodes()) {
      if (!std::holds_alternative<StateScan>(node.op)) continue;
      // No products of matrices in a prompt; a step streams the state.
      const bool decodes = pass == &r.decode();
      CHECK(rate_class(*pass, node) == (decodes ? RateClass::DecodeAttention : RateClass::Vector));
    }
  }
  // 16,384 channels with states of 16: e^A once; of each token softplus of dt + dt_bias and its
  // negative (5), u (1) and D·v (2), and of each number of the state 7.
  const std::uint64_t of_token = 16384 * (5 + 1 + 2 + 7 * 16);
  for (const std::uint64_t tokens : {1u, 100u, 5000u}) {
    CHECK(scans(r.prefill()).flops.at(r.symbols.resolve({3, tokens, tokens})) ==
          63 * (16384 * 16 + 3 * tokens * of_token));
  }
}

TEST_CASE("state spaces: a prompt costs the same for each further chunk") {
  const Recording r = recorded("granite-4.0-h-tiny");
  const Work w = scans(r.prefill());
  const auto at = [&](std::uint64_t prompt) {
    return static_cast<double>(w.flops.at(r.symbols.resolve({1, prompt, prompt})));
  };
  CHECK(at(1024) - at(768) == at(512) - at(256));
  CHECK(at(8192) / at(4096) == near(2).epsilon(1e-4));
  // Products with the state for each token, pairs within chunks of 256 (half a square and the
  // diagonal): h·4·N·P + (C + 1)/2·(2·N·g + 2·P·h).
  const double of_token = 48 * 4.0 * 128 * 64 + 257.0 / 2 * (2 * 128 + 2 * 64 * 48);
  CHECK(at(4096) / 4096 / 36 > of_token);
  CHECK(at(4096) / 4096 / 36 < 1.05 * of_token);
}

TEST_CASE("state spaces: a server's step of one sequence costs what a chunk costs") {
  for (const char* model : {"granite-4.0-h-tiny", "qwen3-next-80b-a3b", "falcon-h1-1.5b"}) {
    CAPTURE(model);
    Recording r = recorded(model, true);
    const StepSums sums = add_step(r);
    const StepSequence chunk{300, 700};
    const SymbolValues sizes = step_sizes(r, sums, {{chunk}});
    const Work step = total_work(r.pass("step").graph);
    const Work prefill = total_work(r.prefill());
    CHECK(step.flops.at(sizes) == prefill.flops.at(sizes));
    CHECK(step.bytes().at(sizes) == prefill.bytes().at(sizes));
    // Two sequences with the same state rows cost more than one of both.
    const StepSequence other{20, 400};
    const SymbolValues both = step_sizes(r, sums, {{chunk, other}});
    CHECK(scans(r.pass("step").graph).bytes().at(both) >
          scans(r.pass("step").graph).bytes().at(step_sizes(r, sums, {{{320, 1100}}})));
  }
}

TEST_CASE("state spaces: methods that need the cache of all tokens are refused") {
  const Architecture model = load_model(catalog(), "granite-4.0-h-tiny");
  for (const char* methods :
       {"slim", "lazyllm:begin=0.8,end=0.4", "static-prune:keep=0.5", "random-prune:keep=0.5",
        "specprefill:keep=0.5", "kvp:auxiliary=tiny", "mlkv:layers=1,heads=1"}) {
    CAPTURE(methods);
    CHECK_THROWS_AS(record(model, parse_methods(methods), {}), Error);
  }
  const Recording streaming = record(model, parse_methods("streaming:sinks=4,window=60"), {});
  const SymbolValues sizes = streaming.symbols.resolve({1, 1, 5000});
  CHECK(streaming.kv_cache_bytes.at(sizes) == 57581568 + 64 * 8192);
}
