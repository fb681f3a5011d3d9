#include "simulate/collectives.h"

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "simulate/simulation.h"
#include "tests/model/message_of.h"

namespace kvcast::simulate {
namespace {

using roofline::Interconnect;
using roofline::Mode;

constexpr std::array all_kinds{CollectiveKind::AllReduce, CollectiveKind::ReduceScatter,
                               CollectiveKind::AllGather, CollectiveKind::AllToAll};

Interconnect load(const std::string& name) {
  static const Catalog catalog(std::filesystem::path(KVCAST_SOURCE_DIR) / "data");
  return roofline::load_interconnect(catalog, name);
}

Simulation simulation_of(const Interconnect& interconnect, CollectiveKind kind,
                         const RankGroup& group, const std::string& library, std::uint64_t bytes) {
  Programs programs;
  programs.ranks.resize(interconnect.devices());
  append_collective(interconnect, kind, group, library, bytes, programs);
  return {node_platform(interconnect.data()), std::move(programs)};
}

RunResult run(const Interconnect& interconnect, CollectiveKind kind, const RankGroup& group,
              const std::string& library, std::uint64_t bytes) {
  return simulation_of(interconnect, kind, group, library, bytes)
      .run({.send_order = SendOrder::Async});
}

Interconnect plain(std::uint64_t devices, std::uint64_t nodes = 1) {
  roofline::InterconnectData data;
  data.name = "plain";
  data.devices_per_node = devices;
  data.nodes = nodes;
  data.link_bytes_per_s = 1e9;
  data.link_latency_s = 1e-6;
  data.network_bytes_per_s = data.network_payload_bytes_per_s = 0.5e9;
  data.network_latency_s = 5e-6;
  return Interconnect(data);
}

TEST_CASE("simulate: on idle links a collective takes the closed form's time") {
  struct Case {
    std::string platform;
    RankGroup group;
  };
  double worst = 0;
  std::string worst_case;
  for (const Case& c : {Case{"hgx-h100", {2}},  {"hgx-h100", {3}},       {"hgx-h100", {4, 2}},
                        {"hgx-h100", {8}},      {"dgx-a100", {4, 1, 2}}, {"dgx-a100", {8}},
                        {"hgx-b200", {8}},      {"l40s-8", {2}},         {"l40s-8", {4}},
                        {"l40s-8", {8}},        {"a100-pcie-8", {8}},    {"a100-pcie-8", {4, 2}},
                        {"hgx-h100-2", {8}},    {"hgx-h100-2", {16}},    {"hgx-h100-2", {2, 8}},
                        {"hgx-h100-2", {8, 2}}, {"hgx-h100-2", {12}},    {"a100-roce-2", {16}},
                        {"dgx-a100-8", {64}},   {"dgx-a100-8", {8, 8}},  {"hgx-b200-2", {16}}}) {
    const Interconnect interconnect = load(c.platform);
    for (const CollectiveKind kind : all_kinds) {
      for (const std::string library : {"nccl", "vllm", "trtllm"}) {
        if (library != "nccl" && kind != CollectiveKind::AllReduce) continue;
        for (const std::uint64_t bytes : {1ULL << 10, 100'000ULL, 3ULL << 20, 1ULL << 26}) {
          const double closed =
              interconnect.plan(kind, c.group, library, static_cast<double>(bytes)).seconds;
          const double simulated = run(interconnect, kind, c.group, library, bytes).makespan_s;
          const double error = std::abs(simulated / closed - 1);
          INFO(c.platform << " " << name(kind) << " of " << c.group.size << " stride "
                          << c.group.stride << ", " << library << ", " << bytes
                          << " bytes: closed form " << closed << " s, simulated " << simulated);
          CHECK(error < 0.05);
          if (error > worst) {
            worst = error;
            worst_case = c.platform + " " + std::string(name(kind)) + " " +
                         std::to_string(c.group.size) + " " + std::to_string(bytes);
          }
        }
      }
    }
  }
  MESSAGE("largest difference " << worst << ": " << worst_case);
}

TEST_CASE("simulate: a ring of 4 sends 2·3 times from each rank") {
  const Interconnect ring = plain(4);
  const std::uint64_t bytes = 4'000'003;
  // Each step moves the whole buffer once around, all four ranks together.
  RunResult r = run(ring, CollectiveKind::AllReduce, {4}, "", bytes);
  CHECK(r.messages == 4 * 6);
  CHECK(r.message_bytes == 6 * bytes);
  // 6 steps of 2 us and of 1/4 of the buffer at 1 GB/s.
  CHECK(r.makespan_s == doctest::Approx(6 * (2e-6 + 1.00000075e-3)).epsilon(1e-5));
  r = run(ring, CollectiveKind::AllGather, {4}, "", bytes);
  CHECK(r.messages == 4 * 3);
  CHECK(r.message_bytes == 3 * bytes);
  r = run(ring, CollectiveKind::AllToAll, {4}, "", 4'000'000);
  CHECK(r.messages == 4 * 3);
  CHECK(r.message_bytes == 4 * 3 * 1'000'000);
}

TEST_CASE("simulate: messages of the kernels that read each other's memory") {
  const Interconnect hgx = load("hgx-h100");
  // One-shot of 64 KiB: everybody sends all to the 7 others.
  RunResult r = run(hgx, CollectiveKind::AllReduce, {8}, "vllm", 65536);
  CHECK(r.messages == 8 * 7);
  CHECK(r.message_bytes == 8 * 7 * 65536);
  // Two-shot of 1 MiB: two times an eighth to each of the 7 others.
  r = run(hgx, CollectiveKind::AllReduce, {8}, "vllm", 1 << 20);
  CHECK(r.messages == 2 * 8 * 7);
  CHECK(r.message_bytes == 2 * 8 * 7 * (1 << 17));
  // In the switch, 1 GiB: each link carries 9/8 of it, in two steps and 14 messages.
  r = run(hgx, CollectiveKind::AllReduce, {8}, "", 1 << 30);
  CHECK(r.messages == 2 * 8 * 7);
  CHECK(static_cast<double>(r.message_bytes) ==
        doctest::Approx(8 * 9.0 / 8 * (1 << 30)).epsilon(1e-6));
}

TEST_CASE("simulate: two nodes of two send what the stages say") {
  // 8 MB in c parts: in each node 2 messages of half a part, twice; on each of the 2 rails 2 steps
  // of 2 messages of a quarter of a part.
  const Interconnect two = plain(2, 2);
  const auto plan = two.plan(CollectiveKind::AllReduce, {4}, "", 8e6);
  const RunResult r = run(two, CollectiveKind::AllReduce, {4}, "", 8'000'000);
  CHECK(plan.chunks > 1);
  CHECK(r.messages == plan.chunks * (2 * 2 * 2 + 2 * 2 * 2));
  CHECK(r.message_bytes == 8 * 4'000'000 + 8 * 2'000'000);
}

TEST_CASE("simulate: a straggler and others' traffic hold up a collective") {
  const Interconnect hgx = load("hgx-h100");
  const Simulation simulation =
      simulation_of(hgx, CollectiveKind::AllReduce, {4}, "", std::uint64_t{1} << 26);
  RunOptions options{.send_order = SendOrder::Async};
  const double idle = simulation.run(options).makespan_s;
  options.compute_factors = {1, 1, 3, 1, 1, 1, 1, 1};
  const RunResult slow = simulation.run(options);
  CHECK(slow.makespan_s > idle * 1.1);
  CHECK(slow.finish_s[0] > idle * 1.05);  // its neighbours wait for it
  options.compute_factors = {};
  options.background = {{0, 0, 1, std::uint64_t{1} << 30}};
  CHECK(simulation.run(options).makespan_s > idle * 1.05);
}

TEST_CASE("simulate: all-to-all of 256 ranks, and 1,024 ranks") {
  const Interconnect large = load("hgx-h100-128");
  const auto timed = [&](CollectiveKind kind, std::uint64_t ranks) {
    const auto begin = std::chrono::steady_clock::now();
    const RunResult r = run(large, kind, {ranks}, "", std::uint64_t{1} << 26);
    const double closed = large.plan(kind, {ranks}, "", 1 << 26).seconds;
    MESSAGE(name(kind)
            << " of " << ranks << ": " << r.messages << " messages, "
            << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()
            << " s to simulate");
    CHECK(std::abs(r.makespan_s / closed - 1) < 0.05);
    return r.messages;
  };
  CHECK(timed(CollectiveKind::AllToAll, 256) == 256 * 255);
  timed(CollectiveKind::AllReduce, 1024);
}

TEST_CASE("simulate: programs of another number of ranks are refused") {
  Programs programs;
  programs.ranks.resize(4);
  check_line(message_of([&] {
               append_collective(load("hgx-h100"), CollectiveKind::AllReduce, {4}, "", 1000,
                                 programs);
             }),
             {"programs of 4 ranks", "8 devices"});
}

}  // namespace
}  // namespace kvcast::simulate
