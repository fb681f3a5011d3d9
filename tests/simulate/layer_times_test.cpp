#include "simulate/layer_times.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "roofline/forecast.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::simulate;

namespace {

/// Memory so fast that no operator waits for it: seconds are FLOPs.
roofline::Rates counting() { return flat_rates(1, 1e30); }

LayerTimes layer_times(const std::string& model) {
  return {load_model(catalog(), model), {}, fused, a100_rates(fused)};
}

RunResult run(const PrefillWork& work, double bytes_per_s, double latency_s) {
  const auto devices = static_cast<std::uint32_t>(work.ranks.size());
  const Platform ring = make_platform({TopologyKind::Ring}, devices, bytes_per_s, latency_s);
  return Simulation(ring, prefill_programs(work)).run();
}

}  // namespace

TEST_CASE("simulate: one rank that reads the whole prompt takes the forecaster's TTFT") {
  for (const char* model : {"llama-7b", "falcon-7b", "openelm-1.1b", "gemma2-9b", "mistral-7b"}) {
    for (const Lowering* const kernels : {&fused, &eager}) {
      const Lowering& lowering = *kernels;
      const Architecture a = load_model(catalog(), model);
      roofline::Rates rates = a100_rates(lowering);
      // Where they were measured apart.
      rates.latency[static_cast<std::size_t>(roofline::BandwidthClass::Elementwise)] = {1e-6};
      rates.latency[static_cast<std::size_t>(roofline::BandwidthClass::Product)] = {7e-6};
      rates.exposed.fill(0.25);  // as on processors, which hide only a part of the shorter time
      rates.on_chip_bytes_per_second = {BytesPerSecond{4e12}};
      rates.bytes_by_length[static_cast<std::size_t>(roofline::BandwidthClass::Product)] =
          roofline::RateCurve({{1, 0.8}, {2, 0.1}}, 0.1);
      const LayerTimes times(a, {}, lowering, rates);
      const roofline::Forecaster forecaster(record(a, {}, lowering), lowering, rates);
      for (const std::uint64_t prompt : {1u, 37u, 1000u, 9000u}) {
        INFO(model, " eager ", kernels == &eager, " prompt ", prompt);
        const double ttft = forecaster.at({.prompt_len = prompt}).ttft_s;
        CHECK(times.total_s(times.of_rank(prompt, prompt, true)) == near(ttft).epsilon(1e-12));
        const LayerTimes three = times.for_batch(3);
        const double ttft_3 = forecaster.at({.batch = 3, .prompt_len = prompt}).ttft_s;
        CHECK(three.total_s(three.of_rank(prompt, prompt, true)) == near(ttft_3).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("simulate: the exchange parts a layer after its projections and rotations") {
  const LayerTimes times(tiny(), {}, fused, counting());
  CHECK(times.num_layers() == 3);
  CHECK(times.kinds().size() == 3);
  const RankTimes t = times.of_rank(5, 7, true);
  // The last layer is followed by the head, not by a layer: of a kind of its own, with equal times.
  CHECK(times.kinds() == std::vector<std::size_t>{0, 0, 1});
  REQUIRE(t.kinds.size() == 2);
  CHECK(t.kinds[1].before_exchange_s == t.kinds[0].before_exchange_s);
  CHECK(t.kinds[1].after_exchange_s == t.kinds[0].after_exchange_s);
  // Before: RMS norm 4·5·48 + 3·5; q, k, v 2·5·48·(48+24+24); rotation 6 a pair of (48+24)/2.
  const double before = 4 * 5 * 48 + 3 * 5 + 2 * 5 * 48 * 96 + 6 * 5 * 36;
  CHECK(t.kinds[0].before_exchange_s == near(before));
  // After: scores and values 4·8 for each of 6 heads and visible pair, 3 + 4 + ... + 7 = 25 of
  // them, with 1 for the scale, 4 for the softmax of each and a division for each of 5·48 outputs;
  // output projection; two residuals; norm; gated MLP.
  const double attention = (4 * 8 + 1 + 4) * 6 * 25 + 5 * 48;
  const double after = attention + 2 * 5 * 48 * 48 + 2 * 5 * 48 + (4 * 5 * 48 + 3 * 5) +
                       3 * 2 * 5 * 48 * 20 + 5 * 5 * 20;
  CHECK(t.kinds[0].after_exchange_s == near(after));
  CHECK(t.embedding_s < 1e-20);  // bytes only
  CHECK(t.head_s == near(4 * 48 + 3 + 2 * 48 * 51));
  CHECK(times.of_rank(5, 7, false).head_s == 0);
  CHECK(times.bytes_per_token() == std::vector<std::uint64_t>(2, 2 * 3 * 8 * 2));
  CHECK(times.for_batch(7).for_batch(5).bytes_per_token() == std::vector<std::uint64_t>(2, 5 * 96));
}

TEST_CASE("simulate: scores in memory cost all keys, a fused kernel the visible ones") {
  const LayerTimes in_memory(tiny(), {}, eager, counting());
  const LayerTimes tiled(tiny(), {}, fused, counting());
  CHECK(in_memory.keys(Schedule::Tsp, 6, 9) == 9);
  CHECK(tiled.keys(Schedule::Tsp, 6, 9) == 6);
  CHECK(in_memory.keys(Schedule::Kvr, 6, 9) == 6);
  const auto attention_growth = [](const LayerTimes& t, std::uint64_t keys) {
    return t.of_rank(3, keys + 1, false).kinds[0].after_exchange_s -
           t.of_rank(3, keys, false).kinds[0].after_exchange_s;
  };
  // One key more is seen by 3 queries of 6 heads: 2·8 for the score, 2·8 for the value, 5 for scale
  // and softmax; scores in memory are masked too.
  CHECK(attention_growth(tiled, 5) == near(3 * 6 * (4 * 8 + 5)));
  CHECK(attention_growth(in_memory, 5) >= 3 * 6 * (4 * 8 + 5 + 1));
}

TEST_CASE("simulate: layers of different shape have times of their own") {
  const Architecture a = load_model(catalog(), "openelm-1.1b");
  const LayerTimes times(a, {}, fused, counting());
  const RankTimes t = times.of_rank(64, 128, false);
  CHECK(t.kinds.size() > 2);
  // Deeper layers of OpenELM are wider.
  CHECK(t.kinds[times.kinds().back()].after_exchange_s >
        t.kinds[times.kinds().front()].after_exchange_s);
}

TEST_CASE("simulate: a slow host sets the pace of the pass, or of each part between exchanges") {
  roofline::Rates rates = counting();
  rates.host_operator_latency = {1e9};  // slower than any operator here
  const LayerTimes times(tiny(), {}, eager, rates);
  const RankTimes alone = times.of_rank(7, 7, true);
  CHECK(times.total_s(alone) == near(1e9 * times.num_operators()));
  const RankTimes exchanging = times.of_rank(7, 7, true, {.exchanges = true, .messages_s = 5e8});
  CHECK(times.total_s(exchanging) == near(1e9 * times.num_operators() + 3 * 5e8));
  const RankTimes exchanged =
      times.of_rank(7, 7, true, {.exchanges = true, .messages_s = 5e8, .exchange_s = 3e8});
  CHECK(times.total_s(exchanged) == near(times.total_s(exchanging) + 3 * 3e8));
  // Keys and values from others: two operators more in each layer, to join them with the own ones.
  const RankTimes joined = times.of_rank(5, 7, true, {.exchanges = true, .messages_s = 5e8});
  CHECK(times.total_s(joined) == near(1e9 * (times.num_operators() + 6) + 3 * 5e8));
  // Slim caches and sends keys alone, so that there is one to join in each of 32 layers.
  rates.host_operator_latency = {1e12};
  const LayerTimes slim(load_model(catalog(), "llama-7b"), {{"slim", {{"option", "kcache"}}}},
                        eager, rates);
  CHECK(slim.total_s(slim.of_rank(5, 7, true, {.exchanges = true})) ==
        near(1e12 * (slim.num_operators() + 32)));
}

TEST_CASE("simulate: from one exchange to the next the slower of host and device sets the time") {
  // From the start to the first exchange, from each to the next, from the last one to the end.
  const auto stretches = [](double host_operator_s) {
    roofline::Rates rates = counting();
    rates.host_operator_latency = {host_operator_s};
    const LayerTimes times(tiny(), {}, eager, rates);
    const RankTimes t = times.of_rank(64, 64, true, {.exchanges = true});
    std::vector<double> seconds{t.embedding_s};
    for (const std::size_t kind : times.kinds()) {
      seconds.back() += t.kinds[kind].before_exchange_s;
      seconds.push_back(t.kinds[kind].after_exchange_s);
    }
    seconds.back() += t.head_s;
    return seconds;
  };
  const std::vector<double> device = stretches(0);
  REQUIRE(device.size() == 4);
  constexpr double slow = 1e9;  // than any operator here
  const std::vector<double> host = stretches(slow);
  const LayerTimes times(tiny(), {}, eager, counting());
  CHECK(std::accumulate(host.begin(), host.end(), 0.0) == near(slow * times.num_operators()));
  // A host as fast as the device. Before the first exchange an operator has fewer FLOPs, which the
  // rest of a layer makes up for, but not the embedding. What lies between the messages of an
  // exchange is nearly all bytes, for which the device waits.
  const double host_s = slow * device[1] / host[1];
  const std::vector<double> paced = stretches(host_s);
  const double between_s = paced[1] - device[1];
  CHECK(between_s > host_s);  // of more than one operator
  for (std::size_t i = 0; i < device.size(); ++i) {
    const double waits_s = i + 1 < device.size() ? between_s : 0;
    const double issuing_s = host[i] / slow * host_s;
    CHECK(paced[i] == near(std::max(device[i], issuing_s - waits_s) + waits_s));
  }
  CHECK(paced[0] > 1.1 * device[0] + between_s);
}

TEST_CASE("simulate: joined keys and values are each read and written once") {
  roofline::Rates rates = flat_rates(1e30, 1e30);
  const auto join_seconds = [&](std::uint64_t keys) {
    const LayerTimes slow(tiny(), {}, eager, rates);
    return slow.of_rank(5, keys, false).kinds.back().after_exchange_s;
  };
  rates.bytes_per_second[static_cast<std::size_t>(roofline::BandwidthClass::Elementwise)] = {1};
  // Score elements pass through scale, mask and cast, so take differences that they are linear in.
  const double per_key = join_seconds(8) - join_seconds(7);
  const double first = join_seconds(6) - join_seconds(5);
  // 6 keys are joined, 5 (the own ones alone) are not: 96 bytes a key, read and written.
  CHECK(first - per_key == near(5 * 96 * 2));
}

TEST_CASE("simulate: an encoder-decoder model cannot be read in parts") {
  const Architecture a = load_model(catalog(), "whisper-base");
  CHECK_THROWS_AS(LayerTimes(a, {}, fused, counting()), Error);
}

TEST_CASE("simulate: ranks that all wait for each other go at the pace of lockstep") {
  const LayerTimes times = layer_times("llama-7b");
  const std::vector<std::uint64_t> even{700, 700, 700};
  const double lockstep = 0.8;
  const auto ttft_s = [&](Schedule schedule, const std::vector<std::uint64_t>& partition,
                          double share) {
    return run(prefill_work(times, schedule, partition, {.lockstep = share}), 1e30, 0).ttft_s;
  };
  // The embedding and the head are of one rank, and the head of the one with the last token alone.
  const PrefillWork work = prefill_work(times, Schedule::Tsp, even);
  CHECK(work.ranks[0].head_s == 0);
  CHECK(work.ranks[1].head_s == 0);
  CHECK(work.ranks[2].head_s > 0);
  const double once = work.ranks[2].embedding_s + work.ranks[2].head_s;
  CHECK(ttft_s(Schedule::Tsp, even, lockstep) - once ==
        near((ttft_s(Schedule::Tsp, even, 1) - once) / lockstep));
  // In a chain nobody waits for those behind, and alone for nobody.
  CHECK(ttft_s(Schedule::Kvr, even, lockstep) == ttft_s(Schedule::Kvr, even, 1));
  CHECK(ttft_s(Schedule::Tsp, {2100}, lockstep) == ttft_s(Schedule::Tsp, {2100}, 1));
}

TEST_CASE("simulate: a partition with an empty part is refused") {
  CHECK(message_of([] {
          prefill_work(layer_times("llama-7b"), Schedule::Kvr, {5, 0});
        }) == "partition: got a rank without tokens, expected at least 1 for each");
}
