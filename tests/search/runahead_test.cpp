#include "search/runahead.h"

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "simulate/layer_times.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/near.h"
#include "tests/search/parallel_models.h"

using namespace kvcast;
using namespace kvcast::search;
using simulate::RankTimes;

namespace {

/// Two ranks of 512 tokens, 4 layers of 16384 bytes a token, over a switch: 1 GB/s, twice 50
/// us.
double two_ranks(SendOrder order) {
  const Chain chain{{0, 0, 0, 0}, {16384}, {1e9, 1e-4, order}};
  RunaheadScratch scratch;
  play_rank(chain, RankTimes{0, 0, {{0.000343597, 0.001380116}}}, 512, false, scratch);
  return play_rank(chain, RankTimes{0, 0, {{0.000343597, 0.001408749}}}, 1024, true, scratch);
}

}  // namespace

TEST_CASE("runahead: messages that share a link, one after another, or waited for") {
  // Each message of 8388608 bytes takes 8.388608 ms alone; they are ready 1.723713 ms apart.
  // Shared, the last of the four arrives when the link has moved all: 1e-4 + 0.343597 ms +
  // 4·8.388608 ms.
  CHECK(two_ranks(SendOrder::Async) == near(36.613186e-3).epsilon(2e-7));
  // One by one each pays its 0.1 ms: 0.343597 + 4·8.488608, then 1.408749.
  CHECK(two_ranks(SendOrder::Fifo) == near(35.706778e-3).epsilon(1e-9));
  // Waited for, 1.380116 + 0.343597 ms of computing lie between the messages.
  CHECK(two_ranks(SendOrder::Block) == near(35.706778e-3 + 3 * 1.723713e-3).epsilon(1e-9));
}

TEST_CASE("runahead: of messages that share a link, each ends when its bytes are through") {
  const auto ends = [](const std::vector<double>& starts, const std::vector<std::uint64_t>& bytes) {
    std::vector<std::size_t> kinds;
    for (std::size_t l = 0; l < starts.size(); ++l) kinds.push_back(l);
    std::vector<double> sent(starts.size());
    share_link({kinds, bytes, {1, 0, SendOrder::Async}}, 1, starts, sent);
    return sent;
  };
  CHECK(ends({3}, {8}) == std::vector<double>{11});
  // The first has 2 of 8 bytes done when the second joins: 6 more at half the rate; then the
  // second's last 2 alone.
  CHECK(ends({0, 2}, {8, 8}) == std::vector<double>{14, 16});
  // The second's 3 bytes at half the rate end at 8, and the first's last 3 at 11.
  CHECK(ends({0, 2}, {8, 3}) == std::vector<double>{11, 8});
}

TEST_CASE("runahead: a fast link leaves the longest rank and the way to it") {
  const Chain chain{{0, 0, 0}, {1}, {1e30, 0, SendOrder::Fifo}};
  RunaheadScratch scratch;
  play_rank(chain, RankTimes{0, 0, {{1, 4}}}, 1, false, scratch);
  play_rank(chain, RankTimes{0, 0, {{2, 6}}}, 2, false, scratch);
  const double end = play_rank(chain, RankTimes{0, 10, {{1, 1}}}, 3, true, scratch);
  // The second rank has its third layer's keys at 2 + 2·(6 + 2) = 18; 1 after them, 10 of head.
  CHECK(end == near(29));
}

TEST_CASE("runahead: the closed form ends when the simulator does") {
  const std::vector<std::vector<std::uint64_t>> partitions{
      {1024, 1024, 1024, 1024}, {1900, 1000, 700, 496}, {3000, 96}, {600, 500, 400, 300, 200, 96}};
  const auto check = [&](const simulate::LayerTimes& times, SendOrder order, double bytes_per_s,
                         bool has_states) {
    for (const auto& partition : partitions) {
      CAPTURE(name(order));
      CAPTURE(bytes_per_s);
      const ChainLink link{bytes_per_s, 2e-5, order, 1e-5, 2e-3, 0.9};
      simulate::RunOptions options;
      options.send_order = order;
      const auto simulated = [&](simulate::Schedule schedule) {
        const simulate::PrefillWork work =
            prefill_work(times, schedule, partition, {1e-5, 2e-3, 0.9});
        const auto devices = static_cast<std::uint32_t>(partition.size());
        const simulate::Platform ring =
            simulate::make_platform({simulate::TopologyKind::Ring}, devices, bytes_per_s, 2e-5);
        return simulate::Simulation(ring, prefill_programs(work)).run(options).ttft_s;
      };
      CHECK(Runahead(times, link).ttft_s(partition) ==
            near(simulated(simulate::Schedule::Kvr)).epsilon(1e-9));
      if (order == SendOrder::Async || has_states) continue;
      CHECK(tsp_ttft_s(times, link, partition) ==
            near(simulated(simulate::Schedule::Tsp)).epsilon(1e-9));
    }
  };
  const simulate::LayerTimes dense = layer_times("llama-7b", eager);
  // States beside attention, and in layers of their own.
  const simulate::LayerTimes parallel = layer_times("falcon-h1-1.5b", fused);
  const simulate::LayerTimes mixed = layer_times("granite-4.0-h-tiny", eager);
  const simulate::LayerTimes convolutions = layer_times("lfm2-1.2b", fused);
  for (const SendOrder order : {SendOrder::Fifo, SendOrder::Async, SendOrder::Block}) {
    for (const double bytes_per_s : {1e9, 10e9, 300e9}) {
      check(dense, order, bytes_per_s, false);
      check(parallel, order, bytes_per_s, true);
      check(mixed, order, bytes_per_s, true);
      check(convolutions, order, bytes_per_s, true);
    }
  }
}

TEST_CASE("runahead: one rank is the forecaster's, whatever the link") {
  const Runahead r(layer_times("llama-7b", eager), {1e9, 1, SendOrder::Fifo});
  const std::vector<std::uint64_t> whole{4096};
  CHECK(r.ttft_s(whole) == near(r.times().total_s(r.times().of_rank(4096, 4096, true))));
  CHECK(tsp_ttft_s(r.times(), r.link(), whole) == near(r.ttft_s(whole)));
}

TEST_CASE("runahead: TSP gathers all parts in each layer, P - 1 of them over each link") {
  const simulate::LayerTimes times = layer_times("llama-7b", eager);
  const ChainLink slow{1e6, 0.25, SendOrder::Fifo};
  const Partition even = even_partition(4096, 4);
  const ChainLink free{1e30, 0, SendOrder::Fifo};
  const double computing = tsp_ttft_s(times, free, even);
  // Even parts move in step: 32 layers of 3 messages, 0.25 s and 1024 tokens of 16384 bytes each.
  const double moving = 32 * 3 * (0.25 + 1024 * 16384 / 1e6);
  CHECK(tsp_ttft_s(times, slow, even) == near(computing + moving).epsilon(1e-9));
  // With scores in memory every rank computes a quarter of all of them.
  const auto last = times.of_rank(1024, 4096, true, {.exchanges = true});
  CHECK(computing == near(times.total_s(last)));
}

TEST_CASE("runahead: links that cost nothing give the bound, and others no less") {
  const simulate::LayerTimes times = layer_times("llama-7b", fused);
  const Partition partition{2000, 1500, 1000, 500};
  for (const simulate::Schedule schedule : {simulate::Schedule::Kvr, simulate::Schedule::Tsp}) {
    const PrefillBounds bounds = prefill_bounds(times, schedule, partition, {});
    const auto ttft_s = [&](double bytes_per_s, double latency_s) {
      const simulate::Platform ring =
          simulate::make_platform({simulate::TopologyKind::Ring}, 4, bytes_per_s, latency_s);
      const simulate::PrefillWork work = prefill_work(times, schedule, partition);
      return simulate::Simulation(ring, prefill_programs(work)).run().ttft_s;
    };
    CHECK(ttft_s(1e30, 0) == near(bounds.no_communication_s).epsilon(1e-12));
    CHECK(ttft_s(10e9, 1e-5) > bounds.no_communication_s);
    CHECK(bounds.no_communication_s < bounds.one_device_s);
    CHECK(bounds.star_s == near(bounds.one_device_s * 5 / 32).epsilon(1e-12));  // 1/2 (1/4 + 1/16)
  }
}

TEST_CASE("runahead: what cannot be is refused in one line") {
  const simulate::LayerTimes times = layer_times("llama-7b", fused);
  CHECK_THROWS_WITH_AS(Runahead(times, {0, 0}),
                       "link bandwidth: got 0 bytes/s, expected a number above 0", Error);
  CHECK_THROWS_AS(Runahead(times, {1e9, -1}), Error);
  CHECK_THROWS_AS(even_partition(3, 4), Error);
  CHECK_THROWS_AS(even_partition(3, 0), Error);
  CHECK_THROWS_WITH_AS(simulate::parse_send_order("fifi"),
                       "unknown send order 'fifi'; did you mean 'fifo'?", Error);
  const Partition parts{5, 0, 4};
  CHECK_THROWS_AS(check_partition(parts, 9, "here"), Error);
  CHECK_THROWS_WITH_AS(check_partition(Partition{5, 3}, 9, "here"),
                       "here: got parts of 8 tokens in all, expected the 9 of the prompt", Error);
  CHECK(even_partition(11, 4) == Partition{3, 3, 3, 2});
}
