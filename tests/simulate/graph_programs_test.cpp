#include "simulate/graph_programs.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/record/rank_recording.h"
#include "roofline/forecast.h"
#include "simulate/layer_times.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

namespace kvcast::simulate {
namespace {

Platform links(std::size_t devices, double bytes_per_s, double latency_s) {
  return make_platform({TopologyKind::Ring}, static_cast<std::uint32_t>(devices), bytes_per_s,
                       latency_s);
}

/// The program if the values of each layer were in the message of its keys, which they follow: its
/// messages stand together where the last of them stood.
Program joined_messages(const Program& program, std::size_t layers) {
  const auto is_message = [](const Instruction& i) { return !std::holds_alternative<Compute>(i); };
  const auto all =
      static_cast<std::size_t>(std::count_if(program.begin(), program.end(), is_message));
  Program joined;
  std::vector<Instruction> of_layer;
  for (const Instruction& instruction : program) {
    if (!is_message(instruction)) {
      joined.push_back(instruction);
      continue;
    }
    of_layer.push_back(instruction);
    if (of_layer.size() < all / layers) continue;
    for (std::size_t i = 0; i < of_layer.size(); i += 2) {
      joined.push_back(of_layer[i]);
      if (auto* send = std::get_if<Send>(&joined.back())) {
        send->bytes += std::get<Send>(of_layer[i + 1]).bytes;
      }
    }
    of_layer.clear();
  }
  return joined;
}

}  // namespace

TEST_CASE("graph_programs: one rank takes the forecaster's TTFT, host and all") {
  for (const Lowering& lowering : {fused, eager}) {
    const Architecture a = load_model(catalog(), "openelm-1.1b");
    const roofline::Rates rates = a100_rates(lowering);
    for (const std::uint64_t prompt : {5u, 4096u}) {  // the host is slower, the device is
      const Programs programs = recorded_programs(a, {}, Schedule::Kvr, {prompt}, lowering, rates);
      const RunResult r = Simulation(links(1, 1e9, 0), programs).run();
      const roofline::Forecaster forecaster(record(a, {}, lowering), lowering, rates);
      CHECK(r.ttft_s == near(forecaster.at({.prompt_len = prompt}).ttft_s).epsilon(1e-12));
      CHECK(r.messages == 0);
    }
  }
}

TEST_CASE("graph_programs: kvr and tsp are their schedules, in twice as many messages") {
  const Architecture a = load_model(catalog(), "llama-7b");
  const roofline::Rates rates = a100_rates(fused);
  const LayerTimes times(a, {}, fused, rates);
  const std::vector<std::uint64_t> partition{1500, 1000, 900, 600};
  const ExchangeCost cost{.lockstep = 0.9};
  for (const Schedule schedule : {Schedule::Kvr, Schedule::Tsp}) {
    const std::string method(name(schedule));
    const Programs programs = recorded_programs(a, {}, schedule, partition, fused, rates, cost);
    Programs joined = programs;
    for (Program& program : joined.ranks) program = joined_messages(program, times.num_layers());
    const PrefillWork work = prefill_work(times, schedule, partition, cost);
    for (const double bytes_per_s : {300e9, 10e9, 1e9}) {
      CAPTURE(method);
      CAPTURE(bytes_per_s);
      const Platform ring = links(4, bytes_per_s, 0);
      const RunResult by_operator = Simulation(ring, programs).run();
      const RunResult by_layer = Simulation(ring, prefill_programs(work)).run();
      // Keys and values of a layer are two messages.
      CHECK(by_operator.messages == 2 * by_layer.messages);
      CHECK(by_operator.message_bytes == by_layer.message_bytes);
      const RunResult with_values = Simulation(ring, joined).run();
      CHECK(with_values.messages == by_layer.messages);
      for (std::size_t i = 0; i < partition.size(); ++i) {
        CAPTURE(i);
        CHECK(by_operator.ranks[i].compute_s == near(by_layer.ranks[i].compute_s).epsilon(1e-9));
        // The end of a chain sends nothing: it appends keys and values after what it receives.
        const bool end = schedule == Schedule::Kvr && i == 3;
        CHECK(with_values.finish_s[i] == near(by_layer.finish_s[i]).epsilon(end ? 3e-4 : 1e-9));
      }
      CHECK(by_operator.ttft_s == near(by_layer.ttft_s).epsilon(0.01));
    }
  }
}

TEST_CASE("graph_programs: a chain sends what later tokens see through windows and chunks") {
  const roofline::Rates rates = a100_rates(fused);
  // Boundaries 3000, 8200 and 16500, beyond windows of 128 and 4096 and across chunks of 8192.
  const std::vector<std::uint64_t> partition{3000, 5200, 8300, 1000};
  const auto bytes = [&](const char* model, double tolerance = 0.02) {
    const Architecture a = load_model(catalog(), model);
    const LayerTimes times(a, {}, fused, rates);
    const Programs programs = recorded_programs(a, {}, Schedule::Kvr, partition, fused, rates, {});
    const Platform ring = links(4, 10e9, 0);
    const RunResult by_operator = Simulation(ring, programs).run();
    const RunResult by_layer =
        Simulation(ring, prefill_programs(prefill_work(times, Schedule::Kvr, partition, {}))).run();
    CHECK(by_operator.message_bytes == by_layer.message_bytes);
    CHECK(by_operator.ttft_s == near(by_layer.ttft_s).epsilon(tolerance));
    return by_layer.message_bytes;
  };
  // Keys and values of 2 bytes: 32 layers of 8 heads of 128, W = 4096.
  CHECK(bytes("mistral-7b") == 32 * 4096 * (3000 + 4095 + 4095));
  // 12 of 24 layers of 8 heads of 64 have W = 128.
  CHECK(bytes("gpt-oss-20b") == 12 * 2048 * (3000 + 8200 + 16500 + 3 * 127));
  // 36 of 48 layers of 8 heads of 128 have chunks, of which 3000, 8 and 116 tokens are begun.
  CHECK(bytes("llama-4-scout-17b-16e") ==
        4096 * (12 * (3000 + 8200 + 16500) + 36 * (3000 + 8 + 116)));
  // One latent of 512 and its rotated part of 64 in each of 27 layers.
  CHECK(bytes("deepseek-v2-lite") == 27 * 2 * 576 * (3000 + 8200 + 16500));
  // In each of 24 layers keys and values of 2 heads of 128, a state of 48 heads of 256·64 in fp32,
  // and what a convolution sees of the last 3 tokens: 48 heads of 64 and twice 256.
  CHECK(bytes("falcon-h1-1.5b", 0.01) ==
        24 *
            (1024 * (3000 + 8200 + 16500) + 3 * (48 * 256 * 64 * 4 + 3 * 2 * (48 * 64 + 2 * 256))));
  // 6 layers of 8 heads of 64; 10 see the last 2 tokens of 2048 features, and keep nothing else.
  CHECK(bytes("lfm2-1.2b") == 6 * 2048 * (3000 + 8200 + 16500) + 10 * 3 * 2 * 2 * 2048);
}

TEST_CASE("graph_programs: with latencies and blocking sends each message costs more") {
  const Architecture a = load_model(catalog(), "openelm-270m");
  const roofline::Rates rates = a100_rates(fused);
  const auto ttft = [&](double latency_s, SendOrder order, const ExchangeCost& cost = {}) {
    const Programs programs =
        recorded_programs(a, {}, Schedule::Kvr, {300, 200, 100}, fused, rates, cost);
    RunOptions options;
    options.send_order = order;
    return Simulation(links(3, 1e9, latency_s), programs).run(options).ttft_s;
  };
  const double quick = ttft(1e-4, SendOrder::Fifo);
  CHECK(quick > ttft(0, SendOrder::Fifo));
  CHECK(ttft(1e-4, SendOrder::Block) > quick);
  CHECK(ttft(1e-4, SendOrder::Fifo, {.message_s = 1e-3}) > quick);
  CHECK(ttft(1e-4, SendOrder::Fifo, {.exchange_s = 1e-2}) > quick);
  CHECK(ttft(1e-4, SendOrder::Fifo, {.lockstep = 0.5}) == quick);  // a chain has none
}

TEST_CASE("graph_programs: a host's exchange and messages take their time in each layer") {
  // So long that the host is never ahead of the device: two layers' halves and 4 messages of a rank
  // that receives and sends keys and values.
  const Architecture a = load_model(catalog(), "openelm-270m");
  const roofline::Rates rates = a100_rates(fused);
  const ExchangeCost cost{.message_s = 1, .exchange_s = 10};
  const Programs programs = recorded_programs(a, {}, Schedule::Kvr, {3, 2, 1}, fused, rates, cost);
  const LayerTimes times(a, {}, fused, rates);
  const RunResult r = Simulation(links(3, 1e12, 0), programs).run();
  const auto layers = static_cast<double>(times.num_layers());
  CHECK(r.ranks[1].compute_s == near(layers * (10 + 4)).epsilon(0.01));
  CHECK(r.ranks[0].compute_s == near(layers * (10 + 2)).epsilon(0.01));
}

TEST_CASE("graph_programs: where the host is the slower one, layers take what operators do") {
  const Architecture a = load_model(catalog(), "llama-7b");
  const roofline::Rates rates = a100_rates(eager);
  const LayerTimes times(a, {}, eager, rates);
  const ExchangeCost cost{.message_s = 10e-6, .exchange_s = 20e-6};
  for (const std::uint64_t part : {128u, 256u, 512u, 1024u, 4096u}) {
    CAPTURE(part);
    const std::vector<std::uint64_t> partition(4, part);
    const Platform ring = links(4, 300e9, 1e-6);
    const Programs programs =
        recorded_programs(a, {}, Schedule::Kvr, partition, eager, rates, cost);
    const double by_operator = Simulation(ring, programs).run().ttft_s;
    const PrefillWork work = prefill_work(times, Schedule::Kvr, partition, cost);
    const double by_layer = Simulation(ring, prefill_programs(work)).run().ttft_s;
    CHECK(by_layer == near(by_operator).epsilon(0.05));
  }
}

TEST_CASE("graph_programs: any graph with messages is played, not the two schedules alone") {
  // Three ranks in a star: 1 and 2 send 1000 bytes of their caches to 0, which waits for both.
  // Links of 100 bytes/s; an operator without arithmetic takes the latency of 1 s.
  Lowering bytes{};
  bytes.weights = bytes.activations = bytes.cache = DType::INT8;
  const roofline::Rates rates = flat_rates(1e30, 1e30, 1);
  const auto pass_of = [&](std::size_t rank) -> RankPass {
    Symbols symbols;
    Recorder r(symbols, bytes);
    r.enter("prefill", 0);
    Value state =
        r.append(r.cache("keys", {1, 0, 10}), r.input("x", {1, 100, 10}, DType::INT8), "append");
    if (rank > 0) {
      r.send(state, 0, 0, 100, "send");
    } else {
      state = r.receive(state, 1, 100, 100, 200, "receive");
      state = r.receive(state, 2, 200, 100, 300, "receive");
      r.unary("scale", Function::Scale, state, 2);
    }
    return {r.take(), symbols.resolve({1, 1, 1})};
  };
  const Programs programs = graph_programs(3, pass_of, bytes, rates);
  const RunResult r = Simulation(links(3, 100, 0), programs).run();
  // An append of 1 s everywhere, 1000 bytes at 100 bytes/s over links of their own, a scale of 1 s.
  CHECK(r.finish_s[1] == near(1));
  CHECK(r.finish_s[0] == near(1 + 10 + 1));
  CHECK(r.message_bytes == 2000);
  CHECK(programs.labels == std::vector<std::string>{"append", "scale"});
}

TEST_CASE("graph_programs: a rank that there is not is refused") {
  const Architecture a = load_model(catalog(), "openelm-270m");
  const roofline::Rates rates = a100_rates(fused);
  const Recording r = record_rank(a, {{"kvr", {{"p", "2"}}}}, fused, {{2, 2}, 0});
  const auto alone = [&](std::size_t) -> RankPass {
    return {r.prefill(), r.symbols.resolve({1, 2, 2})};
  };
  CHECK_THROWS_WITH_AS(graph_programs(1, alone, fused, rates),
                       doctest::Contains("got rank 1, expected one of 1 ranks"), Error);
}

}  // namespace kvcast::simulate
