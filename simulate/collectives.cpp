#include "simulate/collectives.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "simulate/topologies.h"

namespace kvcast::simulate {
namespace {

using roofline::CollectiveAlgorithm;
using roofline::CollectivePlan;
using roofline::InterconnectData;

using Ranks = std::vector<std::uint32_t>;

std::uint64_t part_of(std::uint64_t bytes, std::uint64_t part, std::uint64_t parts) {
  return bytes / parts + (part < bytes % parts ? 1 : 0);
}

/// One collective in the making: its messages, and how long they take on idle links.
class Exchange {
 public:
  Exchange(const InterconnectData& data, Programs& programs, std::string label)
      : data_(data), programs_(programs) {
    const auto known = std::find(programs.labels.begin(), programs.labels.end(), label);
    label_ = static_cast<std::uint32_t>(known - programs.labels.begin());
    if (known == programs.labels.end()) programs.labels.push_back(std::move(label));
  }

  void delay(const Ranks& ranks, double seconds) {
    for (const std::uint32_t rank : ranks) {
      programs_.ranks[rank].push_back(Compute{seconds, label_});
    }
  }
  void send(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
    programs_.ranks[from].push_back(Send(to, bytes, false));
  }
  void receive(std::uint32_t at, std::uint32_t from) {
    programs_.ranks[at].push_back(Receive{from});
  }

  bool same_node(std::uint32_t a, std::uint32_t b) const {
    return a / data_.devices_per_node == b / data_.devices_per_node;
  }
  std::uint64_t below(std::uint32_t device) const {
    return device % data_.devices_per_node / std::max<std::uint64_t>(data_.pcie_group, 1);
  }
  double latency_s(std::uint32_t from, std::uint32_t to) const {
    if (!same_node(from, to)) return 2 * data_.network_latency_s;
    const bool far = data_.pcie_group > 0 && below(from) != below(to);
    return (far ? 4 : 2) * data_.link_latency_s;
  }
  double bytes_per_s(std::uint32_t from, std::uint32_t to) const {
    return same_node(from, to) ? data_.link_bytes_per_s : data_.network_payload_bytes_per_s;
  }

  /// Each to each other one at once: the busiest link.
  double direct_s(const Ranks& ranks, double bytes) const {
    double longest = 0;
    for (const std::uint32_t device : ranks) {
      double latency = 0;
      double inside = 0;
      double outside = 0;
      double far = 0;  // beyond the device's own PCIe switch
      for (const std::uint32_t other : ranks) {
        if (other == device) continue;
        latency = std::max(latency, latency_s(device, other));
        (same_node(device, other) ? inside : outside) += 1;
        if (same_node(device, other) && below(device) != below(other)) far += 1;
      }
      double on_link = inside * bytes / data_.link_bytes_per_s;
      if (data_.pcie_group > 0) {
        const double near = inside + 1 - far;
        on_link = std::max(on_link, near * far * bytes / data_.link_bytes_per_s);
      }
      if (outside > 0) {
        on_link = std::max(on_link, outside * bytes / data_.network_payload_bytes_per_s);
      }
      longest = std::max(longest, latency + on_link);
    }
    return longest;
  }
  void send_direct(const Ranks& ranks, std::uint64_t bytes) {
    const std::size_t n = ranks.size();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t s = 1; s < n; ++s) send(ranks[i], ranks[(i + s) % n], bytes);
    }
  }
  void receive_direct(const Ranks& ranks) {
    const std::size_t n = ranks.size();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t s = 1; s < n; ++s) receive(ranks[i], ranks[(i + n - s) % n]);
    }
  }

  /// Messages of 1/n of the buffer to the next rank; their chain around the ring is the longest.
  double ring_s(const Ranks& ranks, std::size_t steps, double bytes) const {
    const std::size_t n = ranks.size();
    std::vector<double> hop(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t to = ranks[(i + 1) % n];
      hop[i] = latency_s(ranks[i], to) + bytes / static_cast<double>(n) / bytes_per_s(ranks[i], to);
    }
    double longest = 0;
    for (std::size_t first = 0; first < n; ++first) {
      double sum = 0;
      for (std::size_t step = 0; step < steps; ++step) sum += hop[(first + step) % n];
      // All messages of one hop share its link.
      const std::uint32_t to = ranks[(first + 1) % n];
      const double on_link = static_cast<double>(steps) * bytes / static_cast<double>(n) /
                             bytes_per_s(ranks[first], to);
      longest = std::max({longest, sum, latency_s(ranks[first], to) + on_link});
    }
    return longest;
  }
  /// `step_delay_s` before each step.
  void ring(const Ranks& ranks, std::size_t steps, std::uint64_t bytes, double step_delay_s) {
    const std::size_t n = ranks.size();
    for (std::size_t step = 0; step < steps; ++step) {
      if (step_delay_s > 0) delay(ranks, step_delay_s);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t part = (i + n * 2 - step % n) % n;
        send(ranks[i], ranks[(i + 1) % n], part_of(bytes, part, n));
        receive(ranks[i], ranks[(i + n - 1) % n]);
      }
    }
  }

  /// Halving, then doubling.
  void tree(const Ranks& ranks, CollectiveKind kind, std::uint64_t bytes) {
    const auto exchange = [&](std::size_t distance, std::uint64_t part) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        send(ranks[i], ranks[i ^ distance], part);
        receive(ranks[i], ranks[i ^ distance]);
      }
    };
    const std::size_t n = ranks.size();
    if (kind != CollectiveKind::AllGather) {
      for (std::size_t d = n / 2; d > 0; d /= 2) exchange(d, bytes * d / n);
    }
    if (kind != CollectiveKind::ReduceScatter) {
      for (std::size_t d = 1; d < n; d *= 2) exchange(d, bytes * d / n);
    }
  }
  double tree_s(const Ranks& ranks, CollectiveKind kind, double bytes) const {
    double seconds = 0;
    const std::size_t n = ranks.size();
    for (std::size_t d = 1; d < n; d *= 2) {
      const double step = latency_s(ranks[0], ranks[d]) + bytes * static_cast<double>(d) /
                                                              static_cast<double>(n) /
                                                              bytes_per_s(ranks[0], ranks[d]);
      seconds += (kind == CollectiveKind::AllReduce ? 2 : 1) * step;
    }
    return seconds;
  }

 private:
  const InterconnectData& data_;
  Programs& programs_;
  std::uint32_t label_ = 0;
};

std::size_t ring_steps(CollectiveKind kind, std::size_t ranks) {
  return (kind == CollectiveKind::AllReduce ? 2 : 1) * (ranks - 1);
}

/// In steps that each wait for all.
void append_direct(Exchange& exchange, const Ranks& ranks, double seconds, int steps,
                   std::uint64_t message) {
  const double idle_s = steps * exchange.direct_s(ranks, static_cast<double>(message));
  for (int step = 0; step < steps; ++step) {
    exchange.delay(ranks, std::max(0.0, seconds - idle_s) / steps);
    exchange.send_direct(ranks, message);
    exchange.receive_direct(ranks);
  }
}

/// All ranks on one node, or all on nodes of their own.
void append_level(Exchange& exchange, const Ranks& ranks, const CollectivePlan& plan,
                  CollectiveAlgorithm algorithm, std::uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  const std::size_t n = ranks.size();
  const auto spare = [&](double idle_s, double steps) {
    return std::max(0.0, plan.seconds - idle_s) / steps;
  };
  switch (algorithm) {
    case CollectiveAlgorithm::None: return;
    case CollectiveAlgorithm::Ring: {
      const std::size_t steps = ring_steps(plan.kind, n);
      const double idle_s = exchange.ring_s(ranks, steps, size);
      return exchange.ring(ranks, steps, bytes, spare(idle_s, static_cast<double>(steps)));
    }
    case CollectiveAlgorithm::Tree:
      exchange.delay(ranks, spare(exchange.tree_s(ranks, plan.kind, size), 1));
      return exchange.tree(ranks, plan.kind, bytes);
    case CollectiveAlgorithm::OneShot:
    case CollectiveAlgorithm::TwoShot:
    case CollectiveAlgorithm::InSwitch:
    case CollectiveAlgorithm::Direct: {
      const double steps = roofline::steps(algorithm, plan.kind, n);
      const double links = roofline::volume(algorithm, plan.kind, n) * size;
      const auto message =
          static_cast<std::uint64_t>(links / steps / static_cast<double>(n - 1) + 0.5);
      return append_direct(exchange, ranks, plan.seconds, static_cast<int>(steps), message);
    }
  }
}

struct Groups {
  Ranks all;
  std::vector<Ranks> nodes;
  std::vector<Ranks> rails;  ///< the i-th of each node
};

void append_stages(Exchange& exchange, const Groups& groups, const CollectivePlan& plan,
                   std::uint64_t bytes) {
  const bool scatters = plan.kind != CollectiveKind::AllGather;
  const bool gathers = plan.kind != CollectiveKind::ReduceScatter;
  const std::uint64_t chunks = plan.chunks;
  const std::uint64_t first = scatters ? 1 : 0;
  const std::uint64_t slots = chunks + first + (gathers ? 1 : 0);
  const std::size_t m = groups.nodes[0].size();
  const bool tree = plan.between == CollectiveAlgorithm::Tree;
  const std::size_t steps = ring_steps(plan.kind, groups.nodes.size());
  const std::uint64_t part = bytes / chunks;
  const std::uint64_t message = part / m;  // inside a node, and the buffer of a rail
  const auto runs = [&](std::uint64_t slot) {
    return std::pair((scatters && slot < chunks ? 1 : 0) + (gathers && slot >= first + 1 ? 1 : 0),
                     slot >= first && slot < first + chunks);
  };
  double idle_s = 0;
  const auto size = static_cast<double>(message);
  const double rail_s = tree ? exchange.tree_s(groups.rails[0], plan.kind, size)
                             : exchange.ring_s(groups.rails[0], steps, size);
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    const auto [inner, crosses] = runs(slot);
    const double inner_s =
        inner == 0 ? 0 : exchange.direct_s(groups.nodes[0], static_cast<double>(inner) * size);
    idle_s += std::max(inner_s, crosses ? rail_s : 0);
  }
  const double spare_s = std::max(0.0, plan.seconds - idle_s) / static_cast<double>(slots);
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    const auto [inner, crosses] = runs(slot);
    exchange.delay(groups.all, spare_s);
    for (int stage = 0; stage < inner; ++stage) {
      for (const Ranks& node : groups.nodes) exchange.send_direct(node, message);
    }
    if (crosses) {
      for (const Ranks& rail : groups.rails) {
        if (tree) {
          exchange.tree(rail, plan.kind, message);
        } else {
          exchange.ring(rail, steps, message, 0);
        }
      }
    }
    for (int stage = 0; stage < inner; ++stage) {
      for (const Ranks& node : groups.nodes) exchange.receive_direct(node);
    }
  }
}

}  // namespace

void check_size(const InterconnectData& data) {
  if (data.devices_per_node <= max_devices && data.nodes <= max_devices &&
      data.devices_per_node * data.nodes <= max_devices) {
    return;
  }
  throw Error("platform " + data.name,
              fmt::format("{} nodes of {} devices", data.nodes, data.devices_per_node),
              fmt::format("at most {} devices", max_devices));
}

Platform node_platform(const InterconnectData& data) {
  check_size(data);
  const auto devices = static_cast<std::uint32_t>(data.devices_per_node);
  Topology topology;
  if (data.pcie_group > 0) {
    topology = {TopologyKind::Pcie, static_cast<std::uint32_t>(data.pcie_group)};
  }
  Platform node = make_platform(topology, devices, data.link_bytes_per_s, data.link_latency_s);
  if (data.nodes == 1) return node;
  std::vector<Node> nodes;
  std::vector<PlatformLink> links;
  const auto per_node = static_cast<std::uint32_t>(node.nodes().size());
  for (std::uint32_t n = 0; n < data.nodes; ++n) {
    for (const Node& inner : node.nodes()) {
      nodes.push_back({fmt::format("node{} {}", n, inner.name), inner.kind});
    }
    for (const PlatformLink& link : node.links()) {
      links.push_back(
          {n * per_node + link.from, n * per_node + link.to, link.bytes_per_s, link.latency_s});
    }
  }
  const auto fabric = static_cast<std::uint32_t>(nodes.size());
  nodes.push_back({"fabric", NodeKind::Switch});
  for (std::uint32_t i = 0; i < fabric; ++i) {
    if (nodes[i].kind != NodeKind::Device) continue;
    links.push_back({i, fabric, data.network_payload_bytes_per_s, data.network_latency_s});
    links.push_back({fabric, i, data.network_payload_bytes_per_s, data.network_latency_s});
  }
  return {std::move(nodes), std::move(links), "platform " + data.name};
}

void append_collective(const roofline::Interconnect& interconnect, CollectiveKind kind,
                       const RankGroup& group, const std::string& library, std::uint64_t bytes,
                       Programs& programs) {
  const CollectivePlan plan = interconnect.plan(kind, group, library, static_cast<double>(bytes));
  if (programs.ranks.size() != interconnect.devices()) {
    throw Error("collective", fmt::format("programs of {} ranks", programs.ranks.size()),
                fmt::format("one for each of the {} devices", interconnect.devices()));
  }
  if (group.size == 1) return;
  Groups groups;
  for (std::uint64_t i = 0; i < group.size; ++i) {
    groups.all.push_back(static_cast<std::uint32_t>(group.member(i)));
  }
  Exchange exchange(interconnect.data(), programs, std::string(name(kind)) + " protocol");
  if (plan.nodes == 1) return append_level(exchange, groups.all, plan, plan.inside, bytes);
  const auto is_apart = [&](std::size_t i) {
    return !exchange.same_node(groups.all[i], groups.all[i + 1]);
  };
  bool apart = true;
  for (std::size_t i = 0; i + 1 < groups.all.size(); ++i) apart &= is_apart(i);
  if (plan.members == 1 && !apart) {
    // Unequal parts of nodes.
    const int steps = kind == CollectiveKind::AllReduce ? 2 : 1;
    return append_direct(exchange, groups.all, plan.seconds, steps, bytes / group.size);
  }
  if (plan.members == 1 || kind == CollectiveKind::AllToAll) {
    return append_level(exchange, groups.all, plan, plan.between, bytes);
  }
  for (std::uint64_t n = 0; n < plan.nodes; ++n) {
    const auto begin = groups.all.begin() + static_cast<std::ptrdiff_t>(n * plan.members);
    groups.nodes.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(plan.members));
  }
  for (std::uint64_t i = 0; i < plan.members; ++i) {
    Ranks rail;
    for (const Ranks& node : groups.nodes) rail.push_back(node[i]);
    groups.rails.push_back(std::move(rail));
  }
  append_stages(exchange, groups, plan, bytes);
}

}  // namespace kvcast::simulate
