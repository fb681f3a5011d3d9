#include "simulate/model_prefill.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/weights/catalog.h"
#include "roofline/hardware.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

LayerTimes layer_times(const std::string& model) {
  const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  const Lowering tiled{};
  const roofline::Rates rates = roofline::make_rates(roofline::load_hardware(catalog, "a100-80gb"),
                                                     tiled, roofline::Mode::SpeedOfLight);
  return {load_model(catalog, model), {}, tiled, rates};
}

RunResult run(const PrefillWork& work, double bytes_per_s, double latency_s) {
  const Platform platform =
      make_platform({TopologyKind::Ring}, static_cast<std::uint32_t>(work.partition_tokens.size()),
                    bytes_per_s, latency_s);
  return Simulation(platform, prefill_programs(work)).run();
}

TEST_CASE("simulate: one rank takes what one device takes, and sends nothing") {
  for (const char* model : {"llama-7b", "gemma2-9b", "openelm-1.1b"}) {
    CAPTURE(model);
    const LayerTimes times = layer_times(model);
    for (const Schedule schedule : {Schedule::Kvr, Schedule::Tsp}) {
      const PrefillWork work = prefill_work(times, schedule, {3000});
      const RunResult r = run(work, 1, 1);
      CHECK(r.ttft_s == near(times.total_s(times.of_rank(3000, 3000, true))).epsilon(1e-12));
      CHECK(r.messages == 0);
    }
  }
}

TEST_CASE("simulate: a model's messages are the cache that the schedules must move") {
  // Llama 7B keeps 2 * 32 * 4096 fp16 numbers a token. Runahead of 4, 3, 2 parts: 4 + 7 of them;
  // TSP of 9 tokens: 2 * 9.
  const LayerTimes times = layer_times("llama-7b");
  const std::uint64_t token = 2 * 32 * 4096 * 2;
  CHECK(run(prefill_work(times, Schedule::Kvr, {4, 3, 2}), 1e9, 0).message_bytes == 11 * token);
  CHECK(run(prefill_work(times, Schedule::Tsp, {4, 3, 2}), 1e9, 0).message_bytes == 18 * token);
}

TEST_CASE("simulate: ranks that all wait for each other go at the pace of lockstep") {
  const LayerTimes times = layer_times("llama-7b");
  const std::vector<std::uint64_t> even{700, 700, 700};
  const double lockstep = 0.8;
  const auto ttft_s = [&](Schedule schedule, const std::vector<std::uint64_t>& partition,
                          double share) {
    return run(prefill_work(times, schedule, partition, {.lockstep = share}), 1e30, 0).ttft_s;
  };
  // The embedding and the head are of one rank.
  const PrefillWork work = prefill_work(times, Schedule::Tsp, even);
  const double once = work.before_layers_s.back() + work.after_layers_s.back();
  CHECK(ttft_s(Schedule::Tsp, even, lockstep) - once ==
        near((ttft_s(Schedule::Tsp, even, 1) - once) / lockstep));
  // In a chain nobody waits for those behind, and alone for nobody.
  CHECK(ttft_s(Schedule::Kvr, even, lockstep) == ttft_s(Schedule::Kvr, even, 1));
  CHECK(ttft_s(Schedule::Tsp, {2100}, lockstep) == ttft_s(Schedule::Tsp, {2100}, 1));
}

TEST_CASE("simulate: the head is computed by the rank with the last token alone") {
  const LayerTimes times = layer_times("llama-7b");
  const PrefillWork work = prefill_work(times, Schedule::Tsp, {700, 700, 700});
  CHECK(work.after_layers_s[0] == 0);
  CHECK(work.after_layers_s[1] == 0);
  CHECK(work.after_layers_s[2] > 0);
}

TEST_CASE("simulate: a partition with an empty part is refused") {
  const LayerTimes times = layer_times("llama-7b");
  CHECK(message_of([&] {
          prefill_work(times, Schedule::Kvr, {5, 0});
        }) == "partition: got a rank without tokens, expected at least 1 for each");
}

}  // namespace
}  // namespace kvcast::simulate
