#include "search/partition_bound.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include <doctest/doctest.h>

#include "tests/search/parallel_models.h"

using namespace kvcast;
using namespace kvcast::search;

namespace {

/// 10^x for x evenly between the exponents.
double power_of_ten(std::mt19937& random, double low, double high) {
  const double share = static_cast<double>(random() % 10000) / 9999;
  return std::pow(10.0, low + share * (high - low));
}

}  // namespace

TEST_CASE("partition bound: no partition beats it where layers differ") {
  // OpenELM's last layers cache more than its first ones; turned round, less. Slow links, so that
  // the messages of all layers are on the longest path.
  const roofline::Rates rates = flat_rates(1e12, 1e15);
  Architecture growing = load_model(catalog(), "openelm-1.1b");
  Architecture shrinking = growing;
  std::reverse(shrinking.decoder.layers.begin(), shrinking.decoder.layers.end());
  for (const Architecture& a : {growing, shrinking}) {
    const simulate::LayerTimes times(a, {}, fused, rates);
    for (const SendOrder order : {SendOrder::Fifo, SendOrder::Async, SendOrder::Block}) {
      for (const double bytes_per_s : {1e9, 1e8, 5e7, 1e7, 1e6}) {
        for (const double latency_s : {0.0, 1e-3}) {
          const Runahead r(times, {bytes_per_s, latency_s, order});
          for (const std::size_t ranks : {2u, 3u, 4u}) {
            const std::uint64_t prompt_len = ranks == 4 ? 16 : 24;
            INFO(name(order), " ", bytes_per_s, " ", latency_s, " P ", ranks);
            const double best = best_of_all(r, prompt_len, ranks);
            PartitionBound bound(r, prompt_len, ranks);
            CHECK(bound.ranges(best * (1 + bound_rounding)).feasible);
            CHECK(bound.lower_bound_s(10 * best) <= best * (1 + bound_rounding));
          }
        }
      }
    }
  }
}

TEST_CASE("partition bound: at most what the best of all partitions takes, whatever the link") {
  // A device so slow that nothing is latency, or all is, and links on which messages take from
  // nothing to ten times what the computing takes.
  double gaps = 0;
  double widest = 0;
  constexpr int rounds = 240;
  for (int seed = 0; seed < rounds; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    roofline::Rates rates = arithmetic(1e9, power_of_ten(random, 6, 9));
    rates.bytes_per_second.fill({power_of_ten(random, 7, 12)});
    rates.on_chip_bytes = random() % 2 == 0 ? 1e15 : 1e5;
    rates.latency.fill({random() % 2 == 0 ? 0 : power_of_ten(random, -6, -2)});
    rates.host_operator_latency = {random() % 4 == 0 ? power_of_ten(random, -5, -3) : 0};
    Architecture a = load_model(catalog(), random() % 2 == 0 ? "pythia-70m" : "openelm-270m");
    if (random() % 2 == 0) std::reverse(a.decoder.layers.begin(), a.decoder.layers.end());
    const SendOrder orders[] = {SendOrder::Fifo, SendOrder::Async, SendOrder::Block};
    const ChainLink link{power_of_ten(random, 4, 8),
                         random() % 2 == 0 ? 0 : power_of_ten(random, -5, -2), orders[seed % 3],
                         random() % 4 == 0 ? 1e-4 : 0, random() % 4 == 0 ? 1e-4 : 0};
    const Runahead r(simulate::LayerTimes(a, {}, random() % 2 == 0 ? fused : eager, rates), link);
    const std::size_t ranks = 2 + random() % 3;
    const std::uint64_t prompt_len = ranks + random() % (ranks == 4 ? 12 : 18);
    INFO("seed ", seed, " ", name(link.order), " P ", ranks, " prompt_len ", prompt_len);
    const double best = best_of_all(r, prompt_len, ranks);
    PartitionBound bound(r, prompt_len, ranks);
    CHECK(bound.ranges(best * (1 + bound_rounding)).feasible);
    const double lower = bound.lower_bound_s(random() % 2 == 0 ? best : 3 * best);
    CHECK(lower <= best * (1 + bound_rounding));
    gaps += best / lower - 1;
    widest = std::max(widest, best / lower - 1);
  }
  MESSAGE("mean gap ", gaps / rounds, ", widest ", widest);
  CHECK(widest < 0.005);
}
