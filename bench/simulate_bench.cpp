// Messages a second of the network simulator, and what a search pays for one candidate partition.
#include <cstdint>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "simulate/schedules.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"

namespace {

using namespace kvcast::simulate;

/// Half a second of work a process, a few microseconds a message.
PrefillWork work_of(Schedule schedule, std::uint32_t devices, std::size_t layers) {
  PrefillWork work;
  work.schedule = schedule;
  work.bytes_per_token = {16384};
  for (std::uint32_t i = 0; i < devices; ++i) {
    work.partition_tokens.push_back(100 + 7 * (i % 5));
    work.ranks.push_back({0, 0, {{1e-3 + 1e-6 * i, 4e-3 - 1e-6 * i}}});
  }
  work.layers.assign(layers, 0);
  return work;
}

Platform platform_of(TopologyKind kind, std::uint32_t devices) {
  return make_platform({kind}, devices, 300e9, 2e-6);
}

void count_messages(benchmark::State& state, std::uint64_t messages) {
  state.counters["messages"] = static_cast<double>(messages);
  state.counters["messages/s"] = benchmark::Counter(static_cast<double>(messages),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

void run_only(benchmark::State& state, Schedule schedule, TopologyKind topology, SendOrder order) {
  constexpr std::uint32_t devices = 64;
  const Simulation simulation(platform_of(topology, devices),
                              prefill_programs(work_of(schedule, devices, 96)));
  RunOptions options;
  options.send_order = order;
  std::uint64_t messages = 0;
  for (auto _ : state) messages = simulation.run(options).messages;
  count_messages(state, messages);
}

void whole(benchmark::State& state, Schedule schedule, std::uint32_t devices, std::size_t layers) {
  std::uint64_t messages = 0;
  for (auto _ : state) {
    const Simulation simulation(platform_of(TopologyKind::Ring, devices),
                                prefill_programs(work_of(schedule, devices, layers)));
    messages = simulation.run().messages;
  }
  count_messages(state, messages);
}

}  // namespace

BENCHMARK_CAPTURE(run_only, tsp_64_devices_96_layers_ring, Schedule::Tsp, TopologyKind::Ring,
                  SendOrder::Fifo)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_only, tsp_64_devices_96_layers_ring_async, Schedule::Tsp, TopologyKind::Ring,
                  SendOrder::Async)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_only, tsp_64_devices_96_layers_switch, Schedule::Tsp, TopologyKind::Switch,
                  SendOrder::Fifo)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole, tsp_64_devices_96_layers_with_its_programs, Schedule::Tsp, 64, 96)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole, kvr_4_devices_32_layers_with_its_programs, Schedule::Kvr, 4, 32)
    ->Unit(benchmark::kMicrosecond);
