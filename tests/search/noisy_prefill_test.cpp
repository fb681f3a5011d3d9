#include <algorithm>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "search/chain_links.h"
#include "search/partition_search.h"
#include "simulate/layer_times.h"
#include "simulate/noise.h"
#include "simulate/topologies.h"
#include "tests/roofline/test_models.h"

namespace kvcast::search {

// Cho, Rastegari and Naik 2024 (arXiv:2405.05329), section 5 and figure 11, Llama 7B on A100s:
// under traffic of others TSP's TTFT grows by over 10 % on average over 8k, 12k and 16k and by 11.8
// % at most, KVR-S's by 3.7 % at most. They do not describe the traffic; flows of 200 MB at 1750 a
// second are what makes TSP lose about a tenth here.
TEST_CASE("noise: KVR-S loses less than TSP, of the size that the paper measured") {
  const roofline::Hardware node = roofline::load_hardware(catalog(), "a100-80gb-kvr-node");
  const roofline::Rates rates = roofline::make_rates(node, eager, roofline::Mode::Calibrated);
  const simulate::LayerTimes times(load_model(catalog(), "llama-7b"), {}, eager, rates);
  const HardwareLink link = hardware_link(node, roofline::Mode::Calibrated);
  const simulate::ExchangeCost cost = exchange_cost(node, roofline::Mode::Calibrated);
  const simulate::Platform platform = simulate::make_platform(
      {simulate::TopologyKind::Switch}, 4, link.link.bytes_per_s, link.link.latency_s);
  const simulate::NoiseSpec spec =
      simulate::parse_noise("flows=100000,bytes=2e8,rate=1750,trials=20");
  const auto loss = [&](simulate::Schedule schedule, const Partition& partition) {
    const simulate::PrefillWork work = simulate::prefill_work(times, schedule, partition, cost);
    const simulate::Simulation simulation(platform, simulate::prefill_programs(work));
    const simulate::RunOptions quiet;
    return simulate::run_noise(simulation, quiet, spec).mean_s / simulation.run(quiet).ttft_s - 1;
  };
  double tsp_mean = 0;
  double tsp_most = 0;
  double kvr_most = 0;
  for (const std::uint64_t prompt_len : {8192u, 12288u, 16384u}) {
    const Partition searched =
        search_partition(Runahead(times, link.link), prompt_len, 4, PartitionAlgorithm::Balance)
            .tokens;
    const double tsp = loss(simulate::Schedule::Tsp, even_partition(prompt_len, 4));
    const double kvr = loss(simulate::Schedule::Kvr, searched);
    CAPTURE(prompt_len);
    CAPTURE(tsp);
    CHECK(kvr < tsp);
    CHECK(kvr > 0);
    tsp_mean += tsp / 3;
    tsp_most = std::max(tsp_most, tsp);
    kvr_most = std::max(kvr_most, kvr);
  }
  CAPTURE(tsp_mean);
  CHECK(tsp_mean > 0.10 / 2);
  CHECK(tsp_mean < 0.10 * 2);
  CAPTURE(tsp_most);
  CHECK(tsp_most > 0.118 / 2);
  CHECK(tsp_most < 0.118 * 2);
  CAPTURE(kvr_most);
  CHECK(kvr_most > 0.037 / 2);
  CHECK(kvr_most < 0.037 * 2);
}

}  // namespace kvcast::search
