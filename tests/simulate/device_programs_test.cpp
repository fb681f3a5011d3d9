#include "simulate/device_programs.h"

#include <cmath>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include "model/io/weights/catalog.h"
#include "roofline/interconnect.h"
#include "simulate/collectives.h"
#include "simulate/simulation.h"

using namespace kvcast;

namespace {

struct Played {
  double simulated_s = 0;
  double closed_form_s = 0;
  std::uint64_t messages = 0;
};

Played play(const std::string& model, const Parallelism& p, const roofline::DesignPoint& point,
            const std::string& platform = "hgx-h100", double collective_wait_s = 0) {
  static const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  roofline::Configuration c;
  c.architecture = load_model(catalog, model);
  c.hardware = roofline::load_hardware(catalog, "h100-sxm");
  c.parallelism = p;
  c.engine.collective_wait = {collective_wait_s};
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(catalog, platform));
  const simulate::Simulation simulation(simulate::node_platform(c.interconnect->data()),
                                        simulate::device_programs(c, point));
  const simulate::RunResult r = simulation.run({.send_order = simulate::SendOrder::Async});
  CHECK(r.ttft_s == r.makespan_s);  // also where the plan leaves devices out
  return {r.ttft_s, roofline::Estimator(c).at(point).ttft_s, r.messages};
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
                        {"llama-3.1-70b", {.tp = 16}, {1, 2048, 1}, "hgx-h100-2"}};
  for (const Case& c : cases) {
    CAPTURE(c.model);
    CAPTURE(to_string(c.plan));
    const Played p = play(c.model, c.plan, c.point, c.platform);
    CAPTURE(p.simulated_s);
    CAPTURE(p.closed_form_s);
    CHECK(p.messages > 0);
    CHECK(std::abs(p.closed_form_s / p.simulated_s - 1) < 0.05);
  }
}

TEST_CASE("device programs: devices wait at each collective as long as the engine says") {
  const Parallelism plan{.tp = 4};
  const roofline::DesignPoint point{1, 1024, 1};
  const Played none = play("llama-3.1-8b", plan, point);
  const Played some = play("llama-3.1-8b", plan, point, "hgx-h100", 1e-4);
  // Two all-reduces in each of 32 layers, one of the embedding's rows, and the logits.
  CHECK(some.simulated_s - none.simulated_s == doctest::Approx(66e-4).epsilon(1e-6));
  CHECK(some.closed_form_s - none.closed_form_s == doctest::Approx(66e-4).epsilon(1e-6));
}
