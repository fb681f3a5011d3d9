/// The built-in platforms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "simulate/platform.h"

namespace kvcast::simulate {

enum class TopologyKind {
  Ring,      ///< a link per direction between i and i+1 mod P; two devices: just 0 -> 1 and 1 -> 0
  Chain,     ///< a link per direction between i and i+1
  Switch,    ///< up(i) and down(i) between device i and one switch that never is the bottleneck
  Crossbar,  ///< a link for each ordered pair
  Pcie,      ///< devices below PCIe switches, those below the host bridge, all links alike
  FatTree,   ///< devices below leaf switches, those below one root by fatter links
};

struct Topology {
  TopologyKind kind = TopologyKind::Switch;
  /// Pcie, FatTree: devices below one switch; machines differ, so give the machine's own.
  std::uint32_t group = 4;
  /// FatTree: a leaf's devices together over its link to the root; 1 never blocks.
  double oversubscription = 1;
};

/// "ring", "switch", "pcie:group=2", "fat-tree:group=4,oversubscription=2". Throws Error with the
/// nearest name.
Topology parse_topology(std::string_view text);
std::string to_string(const Topology& topology);

/// Of the longest way from device to device; 1 of rings and chains, whose devices talk to their
/// neighbours.
std::uint32_t links_between(const Topology& topology, std::uint32_t devices);

/// Every link has this bandwidth, each direction of its own, and this latency.
/// Throws Error for fewer than 1 or more than max_devices devices, or a wrong bandwidth or latency.
Platform make_platform(const Topology& topology, std::uint32_t devices, double link_bytes_per_s,
                       double link_latency_s);

}  // namespace kvcast::simulate
