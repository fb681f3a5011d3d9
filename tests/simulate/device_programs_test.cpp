#include "simulate/device_programs.h"

#include <cmath>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include "model/io/weights/catalog.h"
#include "roofline/interconnect.h"
#include "simulate/collectives.h"
#include "simulate/simulation.h"
#include "tests/source_catalog.h"

using namespace kvcast;

namespace {

roofline::Configuration on_h100(const std::string& model, const Parallelism& p,
                                const std::string& platform = "hgx-h100") {
  roofline::Configuration c;
  c.architecture = load_model(catalog(), model);
  c.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  c.hardware = roofline::load_hardware(catalog(), "h100-sxm");
  c.parallelism = p;
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog(), platform));
  return c;
}

simulate::RunResult run(const roofline::Configuration& c, const roofline::DesignPoint& point) {
  const simulate::Simulation simulation(simulate::node_platform(c.interconnect->data()),
                                        simulate::device_programs(c, point));
  return simulation.run({.send_order = simulate::SendOrder::Async});
}

struct Played {
  double simulated_s = 0;
  double closed_form_s = 0;
  std::uint64_t messages = 0;
};

/// The prompt.
Played play(const roofline::Configuration& c, roofline::DesignPoint point) {
  point.output_len = 1;
  const simulate::RunResult r = run(c, point);
  CHECK(r.ttft_s == r.makespan_s);  // also where the plan leaves devices out
  return {r.ttft_s, roofline::Estimator(c).at(point).ttft_s, r.messages};
}

double off(double closed_form_s, double simulated_s) {
  return std::abs(closed_form_s / simulated_s - 1);
}

}  // namespace

TEST_CASE("device programs: on idle links the closed form is within 5 % of what is played") {
  struct Case {
    const char* model;
    Parallelism plan;
    roofline::DesignPoint point;
    const char* platform = "hgx-h100";
  };
  const Case cases[] = {{"llama-3.1-8b", {.tp = 2}, {1, 1024, 1}},
                        {"llama-3.1-8b", {.tp = 8}, {4, 512, 1}},
                        {"llama-3.1-8b", {.pp = 4}, {1, 2048, 1}},
                        {"llama-3.1-8b", {.tp = 2, .pp = 2}, {4, 1024, 1}},
                        {"llama-3.1-8b", {.pp = 3}, {7, 2048, 1}},
                        {"qwen3-30b-a3b", {.tp = 4, .ep = 4}, {1, 1024, 1}},
                        {"qwen3-30b-a3b", {.ep = 8, .dp = 8}, {8, 512, 1}},
                        {"qwen3-30b-a3b", {.tp = 2, .ep = 8, .dp = 4}, {8, 512, 1}},
                        {"qwen3-30b-a3b", {.tp = 4, .ep = 16, .dp = 4}, {8, 512, 1}, "hgx-h100-2"},
                        {"llama-3.1-70b", {.tp = 16}, {1, 2048, 1}, "hgx-h100-2"}};
  for (const Case& c : cases) {
    CAPTURE(c.model);
    CAPTURE(to_string(c.plan));
    const Played p = play(on_h100(c.model, c.plan, c.platform), c.point);
    CAPTURE(p.simulated_s);
    CAPTURE(p.closed_form_s);
    CHECK(p.messages > 0);
    CHECK(off(p.closed_form_s, p.simulated_s) < 0.05);
  }
}

TEST_CASE("device programs: unequal stages and micro-batches") {
  for (const std::vector<std::size_t>& layers :
       {std::vector<std::size_t>{24, 8}, {8, 24}, {16, 16}}) {
    for (const std::uint64_t batch : {3u, 4u, 7u}) {
      CAPTURE(layers[0]);
      CAPTURE(batch);
      roofline::Configuration c = on_h100("llama-3.1-8b", {.pp = 2});
      c.stage_layers = layers;
      const Played p = play(c, {batch, 2048, 1});
      CAPTURE(p.simulated_s);
      CAPTURE(p.closed_form_s);
      CHECK(off(p.closed_form_s, p.simulated_s) < 0.01);
    }
  }
}

TEST_CASE("device programs: devices wait at each collective as long as the engine says") {
  roofline::Configuration c = on_h100("llama-3.1-8b", {.tp = 4});
  const Played none = play(c, {1, 1024, 1});
  c.engine.collective_wait = {1e-4};
  const Played some = play(c, {1, 1024, 1});
  // Two all-reduces in each of 32 layers, one of the embedding's rows, and the logits.
  CHECK(some.simulated_s - none.simulated_s == doctest::Approx(66e-4).epsilon(1e-6));
  CHECK(some.closed_form_s - none.closed_form_s == doctest::Approx(66e-4).epsilon(1e-6));
}

TEST_CASE("device programs: steps after the first token are those of the closed form") {
  struct Case {
    const char* model;
    Parallelism plan;
    std::uint64_t batch;
  };
  for (const Case& c : {Case{"llama-3.1-8b", {.tp = 4}, 4},
                        {"llama-3.1-8b", {.pp = 4}, 1},
                        {"llama-3.1-8b", {.tp = 2, .pp = 4}, 16},
                        {"qwen3-30b-a3b", {.ep = 8, .dp = 8}, 8},
                        {"qwen3-30b-a3b", {.tp = 2, .ep = 8, .dp = 4}, 8}}) {
    CAPTURE(c.model);
    CAPTURE(to_string(c.plan));
    const roofline::Configuration of = on_h100(c.model, c.plan);
    const roofline::DesignPoint point{c.batch, 512, 17};
    const double first_s = run(of, {c.batch, 512, 1}).makespan_s;
    const double tpot_s = (run(of, point).makespan_s - first_s) / 16;
    const roofline::Estimate e = roofline::Estimator(of).at(point);
    CAPTURE(tpot_s);
    CAPTURE(e.tpot_s);
    CHECK(off(e.tpot_s, tpot_s) < 0.05);
  }
}

TEST_CASE("device programs: the stages of a pipeline idle as long as the bubble says") {
  const roofline::Configuration c = on_h100("llama-3.1-8b", {.pp = 4});
  for (const std::uint64_t batch : {1u, 4u, 16u}) {
    CAPTURE(batch);
    const simulate::RunResult r = run(c, {batch, 2048, 1});
    double busy_s = 0;
    for (const simulate::RankUsage& rank : r.ranks) busy_s += rank.compute_s;
    const double bubble = roofline::Estimator(c).at({batch, 2048, 1}).prefill_bubble;
    CAPTURE(bubble);
    CHECK(std::abs(bubble - (1 - busy_s / (4 * r.makespan_s))) < 0.02);
  }
  // Equal stages and micro-batches: 3 of 4, 3 of 7 slots.
  CHECK(std::abs(roofline::Estimator(c).at({1, 2048, 1}).prefill_bubble - 0.75) < 0.02);
  CHECK(std::abs(roofline::Estimator(c).at({4, 2048, 1}).prefill_bubble - 3.0 / 7) < 0.03);
  CHECK(std::abs(roofline::Estimator(c).at({1, 2048, 9}).decode_bubble - 0.75) < 0.02);
  CHECK(roofline::Estimator(on_h100("llama-3.1-8b", {.tp = 4})).at({1, 2048, 9}).decode_bubble ==
        0);
}

TEST_CASE("device programs: an engine's own steps, its host, and the passes of helper models") {
  roofline::Configuration c = on_h100("llama-3.1-8b", {.tp = 2});
  c.engine = roofline::load_engine(catalog(), "vllm");
  roofline::apply(c.engine, true, true, c.lowering);
  // One step, several steps of a prompt with a rest, many of them, prompts that share a step, one
  // step more. Each step of a prompt takes longer than the one before, so the last one's way
  // through the stages is the longest.
  for (const auto& [batch, prompt_len] :
       {std::pair{1, 512}, {2, 20000}, {1, 60000}, {40, 1000}, {3, 9216}, {1, 9216}}) {
    for (const std::uint64_t stages : {1u, 2u, 4u}) {
      CAPTURE(batch);
      CAPTURE(prompt_len);
      CAPTURE(stages);
      c.parallelism.pp = stages;
      const Played p =
          play(c, {static_cast<std::uint64_t>(batch), static_cast<std::uint64_t>(prompt_len), 1});
      CAPTURE(p.simulated_s);
      CAPTURE(p.closed_form_s);
      CHECK(off(p.closed_form_s, p.simulated_s) < 0.01);
    }
  }
  // A host that issues operators one by one, in each stage for itself.
  c = on_h100("llama-3.1-8b", {.pp = 4});
  c.engine = roofline::load_engine(catalog(), "pytorch");
  roofline::apply(c.engine, true, true, c.lowering);
  for (const std::uint64_t prompt_len : {64u, 2048u}) {
    CAPTURE(prompt_len);
    const Played p = play(c, {1, prompt_len, 1});
    CHECK(off(p.closed_form_s, p.simulated_s) < 0.05);
    const double tpot_s = (run(c, {1, prompt_len, 9}).makespan_s - p.simulated_s) / 8;
    CAPTURE(tpot_s);
    CHECK(off(roofline::Estimator(c).at({1, prompt_len, 9}).tpot_s, tpot_s) < 0.05);
  }
  c = on_h100("llama-3.1-70b", {.tp = 8});
  const Played plain = play(c, {1, 8192, 1});
  c.methods = parse_methods("specprefill:speculator=llama-3.1-8b,keep=0.3");
  const Played pruned = play(c, {1, 8192, 1});
  CHECK(pruned.simulated_s < plain.simulated_s);
  CHECK(off(pruned.closed_form_s, pruned.simulated_s) < 0.05);
  c.parallelism = {.tp = 4, .pp = 2};
  const Played piped = play(c, {3, 8192, 1});
  CHECK(off(piped.closed_form_s, piped.simulated_s) < 0.05);
}
