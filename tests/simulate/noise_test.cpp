#include "simulate/noise.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/schedules.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

/// Half computing, half sending: noise is felt.
Simulation runahead_of_four() {
  PrefillWork work;
  work.partition_tokens = {4, 3, 2, 1};
  work.ranks.assign(4, {0, 0, {{1, 1}}});
  work.bytes_per_token = {10};
  work.layers.assign(6, 0);
  return {make_platform({TopologyKind::Ring}, 4, 50, 0.01), prefill_programs(work)};
}

TEST_CASE("simulate: noise comes out the same with any number of threads") {
  const Simulation simulation = runahead_of_four();
  const NoiseSpec spec = parse_noise("flows=20,bytes=30,jitter=0.2,seed=5,trials=40");
  const NoiseResult one = run_noise(simulation, {}, spec, {}, 1);
  CHECK(one.ttft_s == run_noise(simulation, {}, spec, {}, 3).ttft_s);
  NoiseSpec other = spec;
  other.seed = 6;
  CHECK(one.ttft_s != run_noise(simulation, {}, other, {}, 3).ttft_s);
  // A trial does not depend on how many there are.
  other = spec;
  other.trials = 10;
  const NoiseResult few = run_noise(simulation, {}, other, {}, 2);
  CHECK(std::equal(few.ttft_s.begin(), few.ttft_s.end(), one.ttft_s.begin()));
  const double quiet = simulation.run().ttft_s;
  CHECK(std::all_of(one.ttft_s.begin(), one.ttft_s.end(), [&](double t) { return t >= quiet; }));
  CHECK(std::set<double>(one.ttft_s.begin(), one.ttft_s.end()).size() > 1);
}

TEST_CASE("simulate: flows go between neighbours, at the rate asked for") {
  const Simulation simulation = runahead_of_four();
  const NoiseSpec spec = parse_noise("flows=2000,bytes=30,rate=10");
  const RunOptions options = noisy_options(spec, 3, simulation, {}, 7);
  REQUIRE(options.background.size() == 2000);
  std::size_t forward = 0;
  double last = 0;
  for (const BackgroundFlow& flow : options.background) {
    const std::uint32_t step = (flow.destination + 4 - flow.source) % 4;
    CHECK((step == 1 || step == 3));
    forward += step == 1 ? 1 : 0;
    CHECK(flow.start_s >= last);
    last = flow.start_s;
  }
  // 2000 gaps of 0.1 s: 200 s, with a deviation of 0.1 * sqrt(2000) = 4.5 s; half of the flows go
  // forward, with a deviation of 22.
  CHECK(last == near(200).epsilon(0.1));
  CHECK(forward > 880);
  CHECK(forward < 1120);
  // Without a rate they start within the quiet run.
  const RunOptions spread = noisy_options(parse_noise("flows=200,bytes=30"), 3, simulation, {}, 7);
  double largest = 0;
  for (const BackgroundFlow& flow : spread.background) largest = std::max(largest, flow.start_s);
  CHECK(largest < 7);
  CHECK(largest > 6);
}

TEST_CASE("simulate: jitter narrows links, evenly up to its share") {
  const Simulation simulation = runahead_of_four();
  const NoiseSpec spec = parse_noise("jitter=0.4");
  double sum = 0;
  double least = 1;
  constexpr std::uint64_t trials = 500;
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    for (const double factor : noisy_options(spec, trial, simulation, {}, 7).bandwidth_factors) {
      sum += factor;
      least = std::min(least, factor);
      CHECK(factor <= 1);
    }
  }
  // 4000 factors, evenly from 0.6 to 1: mean 0.8, deviation of the mean 0.115 / sqrt(4000).
  CHECK(sum / (8 * trials) == near(0.8).epsilon(0.01));
  CHECK(least >= 0.6);
  CHECK(least < 0.605);
}

TEST_CASE("simulate: stragglers are drawn anew in each trial, among those that work") {
  const Simulation simulation = runahead_of_four();
  const NoiseSpec spec = parse_noise("stragglers=1,slowdown=3");
  std::set<std::size_t> drawn;
  for (std::uint64_t trial = 0; trial < 100; ++trial) {
    const RunOptions options = noisy_options(spec, trial, simulation, {}, 7);
    REQUIRE(options.compute_factors.size() == 4);
    CHECK(std::count(options.compute_factors.begin(), options.compute_factors.end(), 3) == 1);
    CHECK(std::count(options.compute_factors.begin(), options.compute_factors.end(), 1) == 3);
    drawn.insert(static_cast<std::size_t>(
        std::find(options.compute_factors.begin(), options.compute_factors.end(), 3) -
        options.compute_factors.begin()));
  }
  CHECK(drawn.size() == 4);
  const double quiet = simulation.run().ttft_s;
  CHECK(run_noise(simulation, {}, spec, {}, 1).mean_s > 1.2 * quiet);
  // Rank 1 alone has something to do.
  const Simulation one(simulation.platform(), {{{}, {Compute{2, 0}}, {}, {}}, {"work"}, 0});
  CHECK(run_noise(one, {}, spec, {}, 1).ttft_s == std::vector<double>(100, 6));
  CHECK(run_noise(one, {}, parse_noise("stragglers=9,slowdown=3"), {}, 1).mean_s == 6);
}

TEST_CASE("simulate: wrong noise is refused") {
  const auto failure = [](const char* text) { return message_of([&] { parse_noise(text); }); };
  CHECK(failure("flow=3") == "unknown noise option 'flow'; did you mean 'flows'?");
  CHECK(failure("flows=3") == "got 'flows=3', expected both flows=N and bytes=B");
  CHECK(failure("seed=3") ==
        "got 'seed=3', expected flows=N,bytes=B, jitter=F or stragglers=N,slowdown=F");
  CHECK(failure("slowdown=3") == "got 'slowdown=3', expected both stragglers=N and slowdown=F");
  CHECK(failure("jitter=1") == "noise option 'jitter': got '1', expected a number from 0 to 0.999");
  CHECK(failure("jitter=0.1,trials=0") ==
        "noise option 'trials': got '0', expected a whole number from 1 to 1e+07");
  CHECK(failure("jitter=0.1,jitter=0.1") == "noise option 'jitter' given twice; expected once");
  CHECK(failure("flows=1.5,bytes=1") ==
        "noise option 'flows': got '1.5', expected a whole number from 0 to 1e+06");
  CHECK(failure("") != "(no Error was thrown)");
  CHECK(to_string(parse_noise("trials=7,jitter=0.25")) == "jitter=0.25,seed=1,trials=7");
  CHECK(to_string(parse_noise("stragglers=2,slowdown=1.5,seed=0")) ==
        "stragglers=2,slowdown=1.5,seed=0,trials=100");
}

}  // namespace
}  // namespace kvcast::simulate
