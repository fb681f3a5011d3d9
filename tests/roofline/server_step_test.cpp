#include "roofline/server_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "roofline/interconnect.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using roofline::Configuration;
using roofline::Estimator;
using roofline::ServerStep;

namespace {

double prompts(ServerStep& step, const std::vector<StepSequence>& chunks) {
  for (const StepSequence& s : chunks) step.add_prompt(s);
  return step.take().value;
}

double decodes(ServerStep& step, const std::vector<std::uint64_t>& kv_lens) {
  for (const std::uint64_t kv_len : kv_lens) step.add_decode(kv_len);
  return step.take().value;
}

/// Four ranks.
Configuration sharing_experts(const char* method) {
  Configuration c = a100_configuration("qwen3-30b-a3b", method);
  c.parallelism.dp = 4;
  c.parallelism.ep = 4;
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog(), "dgx-a100"));
  return c;
}

}  // namespace

// Grouped heads, windows in every second layer, latents, experts, a state.
TEST_CASE("server step: one prompt and one decode step take what they are estimated to") {
  struct Case {
    const char* model;
    double same;
  };
  // Prompts that may come in chunks read latents from the cache that others take as they are made,
  // and the states before them, which the first chunk does not have.
  for (const Case& of : {Case{"llama-3.1-8b", 1e-12},
                         {"gemma2-9b", 1e-12},
                         {"deepseek-v2-lite", 0.02},
                         {"qwen3-30b-a3b", 1e-12},
                         {"granite-4.0-h-tiny", 0.02}}) {
    CAPTURE(std::string(of.model));
    const Configuration c = a100_configuration(of.model, "plain");
    const Estimator estimator(c);
    ServerStep step(c);
    for (const std::uint64_t length : {1u, 37u, 512u, 6000u}) {
      CAPTURE(length);
      const roofline::Estimate e = estimator.at({1, length, 2});
      CHECK(prompts(step, {{length, 0}}) == near(e.ttft_s).epsilon(of.same));
      CHECK(decodes(step, {length + 1}) == near(e.tpot_s).epsilon(1e-12));
      const roofline::Estimate five = estimator.at({5, length, 2});
      CHECK(prompts(step, std::vector<StepSequence>(5, {length, 0})) ==
            near(five.ttft_s).epsilon(of.same));
      CHECK(decodes(step, std::vector<std::uint64_t>(5, length + 1)) ==
            near(five.tpot_s).epsilon(1e-12));
    }
  }
}

TEST_CASE("server step: methods that need whole prompts take what they are estimated to") {
  for (const char* method :
       {"random-prune:keep=0.25", "specprefill:speculator=llama-3.2-1b,keep=0.1",
        "streaming:sinks=4,window=512", "slim:option=xcache", "mlkv:layers=8,heads=8"}) {
    CAPTURE(method);
    const char* model = std::string(method).starts_with("slim") ? "llama-7b" : "llama-3.1-8b";
    const Configuration c = a100_configuration(model, method);
    ServerStep step(c);
    const roofline::Estimate e = Estimator(c).at({1, 2000, 2});
    CHECK(prompts(step, {{2000, 0}}) == near(e.ttft_s).epsilon(1e-12));
    CHECK(decodes(step, {step.slots(2000) + 1}) == near(e.tpot_s).epsilon(1e-12));
  }
}

TEST_CASE("server step: caches of unequal lengths") {
  // Without windows only their sum counts; with one of 4096 it counts where they end.
  ServerStep llama(a100_configuration("llama-3.1-8b", "plain"));
  const double equal = decodes(llama, {3000, 3000, 3000});
  CHECK(decodes(llama, {1, 2999, 6000}) == near(equal).epsilon(1e-12));
  ServerStep mistral(a100_configuration("mistral-7b", "plain"));
  const double full = decodes(mistral, {4096, 4096});
  CHECK(decodes(mistral, {4096, 60000}) == near(full).epsilon(1e-12));
  CHECK(decodes(mistral, {2096, 60000}) < full);
  CHECK(decodes(mistral, {2096, 60000}) == near(decodes(mistral, {3096, 3096})).epsilon(1e-12));
}

TEST_CASE("server step: a mixed step takes less than both alone, and not less than either") {
  ServerStep step(a100_configuration("llama-3.1-8b", "plain"));
  const std::vector<std::uint64_t> kv_lens(16, 4000);
  const double prompt = prompts(step, {{300, 1000}, {212, 0}});
  const double decode = decodes(step, kv_lens);
  step.add_prompt({300, 1000});
  step.add_prompt({212, 0});
  for (const std::uint64_t kv_len : kv_lens) step.add_decode(kv_len);
  const double mixed = step.take().value;
  CHECK(mixed < prompt + decode);
  CHECK(mixed > std::max(prompt, decode));
}

TEST_CASE("server step: tensor parallelism's messages follow the tokens of the step") {
  Configuration c = a100_configuration("llama-3.1-8b", "plain");
  c.parallelism.tp = 4;
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog(), "dgx-a100"));
  const Estimator estimator(c);
  ServerStep step(c);
  const roofline::Estimate e = estimator.at({3, 700, 2});
  CHECK(prompts(step, std::vector<StepSequence>(3, {700, 0})) == near(e.ttft_s).epsilon(1e-12));
  CHECK(decodes(step, {701, 701, 701}) == near(e.tpot_s).epsilon(1e-12));
  CHECK(step.weight_bytes() == e.weight_bytes_per_device);
}

TEST_CASE("server step: experts that lie on several devices") {
  for (const char* model : {"qwen3-30b-a3b", "gpt-oss-20b"}) {
    CAPTURE(model);
    Configuration c = a100_configuration(model, "plain");
    c.parallelism.tp = 4;
    c.parallelism.ep = 4;
    c.interconnect = std::make_shared<const roofline::Interconnect>(
        roofline::load_interconnect(catalog(), "dgx-a100"));
    const Estimator estimator(c);
    ServerStep step(c);
    for (const std::uint64_t length : {1u, 700u}) {
      const roofline::Estimate e = estimator.at({3, length, 2});
      CHECK(prompts(step, std::vector<StepSequence>(3, {length, 0})) ==
            near(e.ttft_s).epsilon(1e-12));
      CHECK(decodes(step, std::vector<std::uint64_t>(3, length + 1)) ==
            near(e.tpot_s).epsilon(1e-12));
    }
    const roofline::Estimate whole = Estimator(a100_configuration(model, "plain")).at({3, 700, 2});
    CHECK(step.weight_bytes() < 0.5 * whole.weight_bytes);
  }
}

TEST_CASE("server step: experts' pairs are those of all sequences, whatever their lengths") {
  const DevicePlace place{{.tp = 4, .ep = 4}};
  Recording r =
      record(load_model(catalog(), "qwen3-30b-a3b"), {}, {}, {.chunked = true, .place = place});
  const StepSums sums = add_step(r, place);
  const SymbolValues two = step_sizes(r, sums, std::vector<StepSequence>{{600, 0}, {100, 0}});
  const SymbolValues one = step_sizes(r, sums, std::vector<StepSequence>{{700, 0}});
  std::size_t layers = 0;
  for (const Node& node : r.pass(step_name).graph.nodes()) {
    const auto* const dispatch = std::get_if<DispatchTokens>(&node.op);
    if (dispatch == nullptr) continue;
    ++layers;
    CHECK(Count(dispatch->pairs).at(two) == Count(dispatch->pairs).at(one));
  }
  CHECK(layers == 48);
}

TEST_CASE("server step: what no step can be made of is refused") {
  CHECK(message_of([] { ServerStep(a100_configuration("t5-small", "plain")); }) != "");
  CHECK(message_of([] {
          Configuration c = a100_configuration("llama-3.1-8b", "plain");
          c.parallelism.pp = 64;
          ServerStep{c};
        }).find("--pp") != std::string::npos);
}

TEST_CASE("server step: a step's way through the stages of a pipeline") {
  for (const char* model : {"llama-3.1-8b", "qwen3-30b-a3b"}) {
    CAPTURE(model);
    Configuration c = a100_configuration(model, "plain");
    c.parallelism.pp = 4;
    c.stage_layers = {5, 9, 9, c.architecture.decoder.layers.size() - 23};
    c.micro_batches = 1;
    c.interconnect = std::make_shared<const roofline::Interconnect>(
        roofline::load_interconnect(catalog(), "dgx-a100"));
    const roofline::Estimate e = Estimator(c).at({3, 700, 2});
    double prompt_s = 0;
    double decode_s = 0;
    double weights = 0;
    for (std::uint64_t stage = 0; stage < 4; ++stage) {
      ServerStep step(c, {}, stage);
      weights += step.weight_bytes();
      prompt_s += prompts(step, std::vector<StepSequence>(3, {700, 0}));
      decode_s += decodes(step, {701, 701, 701});
      step.add_decode(701);
      step.add_prompt({99, 5});
      // Hidden states in 16 bits.
      const double sent =
          stage < 3 ? 100 * 2.0 * static_cast<double>(c.architecture.hidden_size) : 0;
      CHECK(step.hop_bytes() == near(sent));
    }
    const auto hop_s = [&](double rows) {
      return roofline::hop_to_next_stage(c, 0).at(rows * 2 *
                                                  static_cast<double>(c.architecture.hidden_size));
    };
    CHECK(prompt_s + 3 * hop_s(2100) == near(e.ttft_s).epsilon(1e-12));
    CHECK(decode_s + 3 * hop_s(3) == near(e.tpot_s).epsilon(1e-12));
    CHECK(weights == near(e.weight_bytes));
  }
}

TEST_CASE("server step: ranks that share experts step together") {
  const Configuration c = sharing_experts("plain");
  ServerStep step(c);
  // Prompts and sequences that decode, of each rank.
  using Rank = std::pair<std::uint64_t, std::uint64_t>;
  const auto seconds = [&](const std::vector<Rank>& ranks) {
    for (const auto& [prompts, decodes] : ranks) {
      for (std::uint64_t i = 0; i < prompts; ++i) step.add_prompt({700, 0});
      for (std::uint64_t i = 0; i < decodes; ++i) step.add_decode(701);
      step.next_rank();
    }
    return step.take().value;
  };
  const roofline::Estimate e = Estimator(c).at({12, 700, 2});
  CHECK(seconds({{3, 0}, {3, 0}, {3, 0}, {3, 0}}) == near(e.ttft_s).epsilon(1e-12));
  CHECK(seconds({{0, 3}, {0, 3}, {0, 3}, {0, 3}}) == near(e.tpot_s).epsilon(1e-12));
  // As many sequences on one rank: its attention takes longer, the experts do not.
  const double spread_s = seconds({{0, 8}, {0, 8}, {0, 8}, {0, 8}});
  const double heaped_s = seconds({{0, 32}, {0, 0}, {0, 0}, {0, 0}});
  CHECK(heaped_s > spread_s);
  CHECK(heaped_s < seconds({{0, 32}, {0, 32}, {0, 32}, {0, 32}}));
  // One rank's prompt holds the others up; one more of theirs costs no more than their experts.
  const double prompt_s = seconds({{1, 0}, {0, 8}, {0, 8}, {0, 8}});
  CHECK(prompt_s > spread_s);
  CHECK(prompt_s >= seconds({{1, 0}, {0, 0}, {0, 0}, {0, 0}}));
  CHECK(prompt_s < seconds({{1, 0}, {1, 0}, {1, 0}, {1, 0}}));
}

TEST_CASE("server step: whole prompts bring their experts' time with them") {
  const Configuration c = sharing_experts("random-prune:keep=0.5");
  ServerStep step(c);
  const roofline::Estimate e = Estimator(c).at({4, 700, 2});
  for (int rank = 0; rank < 4; ++rank) {
    step.add_prompt({700, 0});
    step.next_rank();
  }
  CHECK(step.take().value == near(e.ttft_s).epsilon(1e-12));
}
