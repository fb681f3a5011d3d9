#include "simulate/topologies.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast::simulate {
namespace {

constexpr Words<TopologyKind, 6> topologies = {{{TopologyKind::Ring, "ring"},
                                                {TopologyKind::Chain, "chain"},
                                                {TopologyKind::Switch, "switch"},
                                                {TopologyKind::Crossbar, "crossbar"},
                                                {TopologyKind::Pcie, "pcie"},
                                                {TopologyKind::FatTree, "fat-tree"}}};

/// A platform in the making, all of whose links are alike unless said otherwise.
class Wiring {
 public:
  Wiring(std::uint32_t devices, double bytes_per_s, double latency_s)
      : bytes_per_s_(bytes_per_s), latency_s_(latency_s) {
    for (std::uint32_t i = 0; i < devices; ++i) add(fmt::format("device{}", i), NodeKind::Device);
  }
  std::uint32_t add(std::string name, NodeKind kind) {
    nodes_.push_back({std::move(name), kind});
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  void link(std::uint32_t from, std::uint32_t to, double width = 1) {
    links_.push_back({from, to, width * bytes_per_s_, latency_s_});
  }
  void join(std::uint32_t a, std::uint32_t b, double width = 1) {
    link(a, b, width);
    link(b, a, width);
  }
  Platform platform(const std::string& place) && {
    return {std::move(nodes_), std::move(links_), place};
  }

 private:
  double bytes_per_s_;
  double latency_s_;
  std::vector<Node> nodes_;
  std::vector<PlatformLink> links_;
};

void wire_groups(const Topology& t, std::uint32_t devices, Wiring& wiring) {
  const bool pcie = t.kind == TopologyKind::Pcie;
  const std::uint32_t root = wiring.add(pcie ? "host bridge" : "root", NodeKind::Switch);
  for (std::uint32_t first = 0; first < devices; first += t.group) {
    const std::uint32_t size = std::min(t.group, devices - first);
    const std::uint32_t group = wiring.add(
        fmt::format("{}{}", pcie ? "pcie switch" : "leaf", first / t.group), NodeKind::Switch);
    for (std::uint32_t i = first; i < first + size; ++i) wiring.join(i, group);
    wiring.join(group, root, pcie ? 1 : size / t.oversubscription);
  }
}

/// KEY=VALUE of a group of devices.
void set_option(std::string_view option, Topology& t) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
  const char* end = value.data() + value.size();
  if (key == "group") {
    const auto [stop, error] = std::from_chars(value.data(), end, t.group);
    if (error == std::errc() && stop == end && t.group >= 1 && t.group <= max_devices) return;
    throw Error("option 'group'", "'" + std::string(value) + "'",
                fmt::format("a number of devices from 1 to {}", max_devices));
  }
  if (key == "oversubscription" && t.kind == TopologyKind::FatTree) {
    const auto [stop, error] = std::from_chars(value.data(), end, t.oversubscription);
    const bool right = error == std::errc() && stop == end && std::isfinite(t.oversubscription) &&
                       t.oversubscription > 0;
    if (right) return;
    throw Error("option 'oversubscription'", "'" + std::string(value) + "'", "a number above 0");
  }
  std::vector<std::string> known{"group"};
  if (t.kind == TopologyKind::FatTree) known.emplace_back("oversubscription");
  throw unknown_name("option", key, known);
}

}  // namespace

Topology parse_topology(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  Topology t{parse_word("topology", name, topologies)};
  if (name.size() == text.size()) return t;
  if (t.kind != TopologyKind::Pcie && t.kind != TopologyKind::FatTree) {
    throw Error(std::string(text) + ": the topology " + std::string(name) + " takes no options");
  }
  for (std::string_view options = text.substr(name.size() + 1);;) {
    const std::size_t comma = options.find(',');
    set_option(options.substr(0, comma), t);
    if (comma == std::string_view::npos) return t;
    options = options.substr(comma + 1);
  }
}

std::string to_string(const Topology& t) {
  std::string text(word_for(t.kind, topologies));
  if (t.kind == TopologyKind::Pcie) text += fmt::format(":group={}", t.group);
  if (t.kind == TopologyKind::FatTree) {
    text += fmt::format(":group={},oversubscription={}", t.group, t.oversubscription);
  }
  return text;
}

Platform make_platform(const Topology& t, std::uint32_t devices, double link_bytes_per_s,
                       double link_latency_s) {
  const std::string place = "platform " + to_string(t);
  if (devices < 1 || devices > max_devices) {
    throw Error(place, fmt::format("{} devices", devices), fmt::format("1 to {}", max_devices));
  }
  Wiring wiring(devices, link_bytes_per_s, link_latency_s);
  switch (t.kind) {
    case TopologyKind::Ring:
    case TopologyKind::Chain:
      for (std::uint32_t i = 0; i + 1 < devices; ++i) wiring.join(i, i + 1);
      if (t.kind == TopologyKind::Ring && devices > 2) wiring.join(devices - 1, 0);
      break;
    case TopologyKind::Switch: {
      const std::uint32_t middle = wiring.add("switch", NodeKind::Switch);
      for (std::uint32_t i = 0; i < devices; ++i) wiring.join(i, middle);
      break;
    }
    case TopologyKind::Crossbar:
      for (std::uint32_t i = 0; i < devices; ++i) {
        for (std::uint32_t j = 0; j < devices; ++j) {
          if (i != j) wiring.link(i, j);
        }
      }
      break;
    case TopologyKind::Pcie:
    case TopologyKind::FatTree: wire_groups(t, devices, wiring); break;
  }
  return std::move(wiring).platform(place);
}

std::uint32_t links_between(const Topology& topology, std::uint32_t devices) {
  switch (topology.kind) {
    case TopologyKind::Ring:
    case TopologyKind::Chain:
    case TopologyKind::Crossbar: return 1;
    case TopologyKind::Switch: return 2;
    case TopologyKind::Pcie:
    case TopologyKind::FatTree: return devices <= topology.group ? 2 : 4;
  }
  KVCAST_ASSERT(false);
  return 0;
}

}  // namespace kvcast::simulate
