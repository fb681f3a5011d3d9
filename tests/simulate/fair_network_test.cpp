// What must hold of every run, whatever the traffic: bytes are conserved, no link is overfull, and
// rates are max-min fair.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

struct Traffic {
  Platform platform;
  std::vector<BackgroundFlow> flows;
};

/// Flows of random sizes between random devices, many at the same instants.
Traffic random_traffic(const std::string& topology, std::uint32_t devices, std::uint32_t seed) {
  std::mt19937 generator(seed);
  const auto random = [&](std::uint32_t below) {
    return static_cast<std::uint32_t>(generator() % below);
  };
  Platform regular = make_platform(parse_topology(topology), devices, 100, 0.25);
  std::vector<PlatformLink> links = regular.links();
  for (PlatformLink& link : links) link.bytes_per_s *= 1 + random(3);
  Traffic traffic{Platform(regular.nodes(), links, "test"), {}};
  for (int i = 0; i < 60; ++i) {
    BackgroundFlow flow;
    flow.source = random(devices);
    flow.destination = (flow.source + 1 + random(devices - 1)) % devices;
    flow.start_s = 0.5 * random(8);
    flow.bytes = 1 + random(200);
    traffic.flows.push_back(flow);
  }
  return traffic;
}

/// All as background flows, beside a computation that ends when they are long gone.
RunResult play(const Traffic& traffic) {
  Programs programs;
  programs.labels = {"work"};
  programs.ranks.resize(traffic.platform.num_devices());
  programs.ranks[0] = {Compute{1e4, 0}};
  RunOptions options;
  options.background = traffic.flows;
  options.record = true;
  return Simulation(traffic.platform, programs).run(options);
}

const std::vector<std::string> topologies{
    "ring", "chain", "switch", "crossbar", "pcie:group=2", "fat-tree:group=3,oversubscription=2"};

TEST_CASE("simulate: rates are max-min fair at every moment") {
  for (const std::string& topology : topologies) {
    for (std::uint32_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(topology);
      CAPTURE(seed);
      const Traffic traffic = random_traffic(topology, 7, seed);
      const RunResult r = play(traffic);
      // Messages are counted by start; equal starts in the order given.
      std::vector<BackgroundFlow> flows = traffic.flows;
      std::stable_sort(flows.begin(), flows.end(),
                       [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
      std::map<std::uint32_t, double> rate;
      bool right = true;
      std::size_t moments = 0;
      for (std::size_t i = 0; i < r.rate_changes.size(); ++i) {
        const RateChange& change = r.rate_changes[i];
        rate[change.message] = change.bytes_per_s;
        if (change.bytes_per_s == 0) rate.erase(change.message);
        const bool last =
            i + 1 == r.rate_changes.size() || r.rate_changes[i + 1].time_s > change.time_s;
        if (!last) continue;
        ++moments;
        std::map<std::uint32_t, double> used;
        std::map<std::uint32_t, double> fastest;
        std::map<std::uint32_t, std::vector<std::uint32_t>> routes;
        for (const auto& [m, bytes_per_s] : rate) {
          const RouteTree tree = traffic.platform.routes_to(flows[m].destination);
          routes[m] = traffic.platform.route(flows[m].source, tree);
          for (const std::uint32_t link : routes[m]) {
            used[link] += bytes_per_s;
            fastest[link] = std::max(fastest[link], bytes_per_s);
          }
        }
        const auto capacity = [&](std::uint32_t link) {
          return traffic.platform.links()[link].bytes_per_s;
        };
        for (const auto& [link, sum] : used) right = right && sum <= capacity(link) * (1 + 1e-9);
        // Each flow has a full link on which no other is faster (Bertsekas and Gallager, 6.5.2).
        for (const auto& [m, bytes_per_s] : rate) {
          bool has_bottleneck = false;
          for (const std::uint32_t link : routes[m]) {
            has_bottleneck = has_bottleneck || (used[link] >= capacity(link) * (1 - 1e-9) &&
                                                bytes_per_s >= fastest[link] * (1 - 1e-9));
          }
          right = right && has_bottleneck;
        }
      }
      CHECK(right);
      CHECK(moments > 60);
      CHECK(rate.empty());
    }
  }
}

TEST_CASE("simulate: every byte is carried once over each link of its route") {
  for (const std::string& topology : topologies) {
    CAPTURE(topology);
    const Traffic traffic = random_traffic(topology, 7, 11);
    const RunResult r = play(traffic);
    std::vector<double> expected(traffic.platform.links().size(), 0);
    for (const BackgroundFlow& flow : traffic.flows) {
      const RouteTree tree = traffic.platform.routes_to(flow.destination);
      for (const std::uint32_t link : traffic.platform.route(flow.source, tree)) {
        expected[link] += static_cast<double>(flow.bytes);
      }
    }
    CHECK(r.link_bytes == expected);
    // What the rates add up to is what was sent.
    std::map<std::uint32_t, RateChange> last;
    double flowed = 0;
    for (const RateChange& change : r.rate_changes) {
      const RateChange before = last[change.message];
      flowed += before.bytes_per_s * (change.time_s - before.time_s);
      last[change.message] = change;
    }
    double sent = 0;
    for (const BackgroundFlow& flow : traffic.flows) sent += static_cast<double>(flow.bytes);
    CHECK(flowed == near(sent).epsilon(1e-9));
  }
}

TEST_CASE("simulate: bytes still on the way at the end are not counted as carried") {
  // 200 B from 0 s at 100 B/s; the only rank is done after 1.5 s.
  const Platform platform = make_platform({TopologyKind::Ring}, 2, 100, 0);
  RunOptions options;
  options.background = {{0, 0, 1, 200}};
  const RunResult r = Simulation(platform, {{{Compute{1.5, 0}}, {}}, {"work"}}).run(options);
  CHECK(r.link_bytes == std::vector<double>{150, 0});
  CHECK(r.link_utilisation == std::vector<double>{1, 0});
}

TEST_CASE("simulate: a lone bottleneck is never idle while bytes wait") {
  // 60 flows of known size over one link, whatever their order: the last byte arrives when all are
  // through, 0.25 s of latency after the first start.
  Traffic traffic = random_traffic("ring", 7, 3);
  double bytes = 0;
  for (BackgroundFlow& flow : traffic.flows) {
    flow.source = 0;
    flow.destination = 1;
    flow.start_s = 0;
    bytes += static_cast<double>(flow.bytes);
  }
  const RunResult r = play(traffic);
  CHECK(r.rate_changes.back().time_s ==
        near(0.25 + bytes / traffic.platform.links()[0].bytes_per_s).epsilon(1e-12));
}

}  // namespace
}  // namespace kvcast::simulate
