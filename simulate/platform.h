/// The platform that a simulation runs on: devices, switches and the links between them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvcast::simulate {

/// More would make tables over all pairs of devices large; no paper's cluster comes near it.
inline constexpr std::uint32_t max_devices = 1024;
/// A slower link is a slip of units; rates near the smallest doubles never end a message.
inline constexpr double least_bytes_per_s = 1;
inline constexpr std::uint32_t no_link = std::numeric_limits<std::uint32_t>::max();

enum class NodeKind {
  Device,  ///< computes, sends and receives, and passes on what others send through it
  Switch,
};

struct Node {
  std::string name;
  NodeKind kind = NodeKind::Device;
};

/// One direction of a wire.
struct PlatformLink {
  std::uint32_t from = 0;  ///< index of a node
  std::uint32_t to = 0;
  double bytes_per_s = 0;
  double latency_s = 0;
};

/// The least-latency paths from every node to one device.
struct RouteTree {
  std::uint32_t destination = 0;  ///< a node
  /// The first link from each node; no_link at the destination.
  std::vector<std::uint32_t> next_link;
};

/// A graph in which every device reaches every other one. Device d is the d-th node of that kind.
class Platform {
 public:
  /// Throws Error, starting with `place`: no or too many devices, a link whose ends are no two
  /// nodes, a bandwidth below 1 byte a second, a negative latency, a device that another one
  /// cannot reach. Names of nodes are made unique by the caller.
  Platform(std::vector<Node> nodes, std::vector<PlatformLink> links, const std::string& place);

  std::uint32_t num_devices() const { return static_cast<std::uint32_t>(devices_.size()); }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<PlatformLink>& links() const { return links_; }
  const std::string& device_name(std::uint32_t device) const {
    return nodes_[devices_[device]].name;
  }
  /// "gpu0 -> gpu1"
  std::string link_name(std::uint32_t link) const;

  /// Ties in latency go to the fewest hops, then hop by hop to the lowest node, then the lowest
  /// link.
  RouteTree routes_to(std::uint32_t device) const;
  /// The links of one route, in order.
  std::vector<std::uint32_t> route(std::uint32_t from_device, const RouteTree& tree) const;

 private:
  std::vector<Node> nodes_;
  std::vector<PlatformLink> links_;
  std::vector<std::uint32_t> devices_;
  std::vector<std::uint32_t> incoming_;        ///< links, by the node that they lead to
  std::vector<std::uint32_t> first_incoming_;  ///< for each node, and the end
  double least_latency_s_ = 0;                 ///< of all links

  /// Whether the links that lead to it are the shortest way from every node, and then their tree.
  bool all_direct(RouteTree& tree) const;
};

}  // namespace kvcast::simulate
