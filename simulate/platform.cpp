#include "simulate/platform.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/reverse_graph.hpp>
#include <boost/graph/strong_components.hpp>
#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::simulate {
namespace {

/// How far it is to a destination: by latency, then by hops.
struct Distance {
  double latency_s = 0;
  std::uint32_t hops = 0;
  auto operator<=>(const Distance&) const = default;
};

struct Edge {
  std::uint32_t link = 0;
  Distance length;
};

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS,
                                    boost::no_property, Edge>;

Graph graph_of(const std::vector<Node>& nodes, const std::vector<PlatformLink>& links) {
  Graph graph(nodes.size());
  for (std::uint32_t i = 0; i < links.size(); ++i) {
    boost::add_edge(links[i].from, links[i].to, Edge{i, {links[i].latency_s, 1}}, graph);
  }
  return graph;
}

std::string describe(const std::vector<Node>& nodes, const PlatformLink& link) {
  return nodes[link.from].name + " -> " + nodes[link.to].name;
}

void check_links(const std::vector<Node>& nodes, const std::vector<PlatformLink>& links,
                 const std::string& place) {
  for (std::size_t i = 0; i < links.size(); ++i) {
    const PlatformLink& link = links[i];
    if (link.from >= nodes.size() || link.to >= nodes.size() || link.from == link.to) {
      throw Error(fmt::format("{}: link {}", place, i),
                  fmt::format("ends {} and {}", link.from, link.to),
                  fmt::format("two of the {} nodes", nodes.size()));
    }
    const std::string where = place + ": link " + describe(nodes, link);
    if (!(link.bytes_per_s >= least_bytes_per_s) || !std::isfinite(link.bytes_per_s)) {
      throw Error(where, fmt::format("{} bytes per second", link.bytes_per_s),
                  fmt::format("a bandwidth of at least {}", least_bytes_per_s));
    }
    if (!(link.latency_s >= 0) || !std::isfinite(link.latency_s)) {
      throw Error(where, fmt::format("a latency of {} s", link.latency_s),
                  "zero or a number of seconds above it");
    }
  }
}

}  // namespace

Platform::Platform(std::vector<Node> nodes, std::vector<PlatformLink> links,
                   const std::string& place)
    : nodes_(std::move(nodes)), links_(std::move(links)) {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == NodeKind::Device) devices_.push_back(i);
  }
  if (devices_.empty() || devices_.size() > max_devices) {
    throw Error(place, fmt::format("{} devices", devices_.size()),
                fmt::format("1 to {}", max_devices));
  }
  check_links(nodes_, links_, place);
  first_incoming_.assign(nodes_.size() + 1, 0);
  for (const PlatformLink& link : links_) ++first_incoming_[link.to + 1];
  std::partial_sum(first_incoming_.begin(), first_incoming_.end(), first_incoming_.begin());
  std::vector<std::uint32_t> next(first_incoming_.begin(), first_incoming_.end() - 1);
  incoming_.resize(links_.size());
  least_latency_s_ = std::numeric_limits<double>::infinity();
  for (std::uint32_t i = 0; i < links_.size(); ++i) {
    incoming_[next[links_[i].to]++] = i;
    least_latency_s_ = std::min(least_latency_s_, links_[i].latency_s);
  }
  // Two nodes are of one component if each reaches the other.
  std::vector<std::size_t> component(nodes_.size());
  const Graph graph = graph_of(nodes_, links_);
  boost::strong_components(
      graph, boost::make_iterator_property_map(component.begin(), get(boost::vertex_index, graph)));
  for (const std::uint32_t d : devices_) {
    if (component[d] == component[devices_.front()]) continue;
    throw Error(place + ": no path leads from " + nodes_[devices_.front()].name + " to " +
                nodes_[d].name +
                " and back; expected links, one per direction, that join every device to every "
                "other");
  }
}

std::string Platform::link_name(std::uint32_t link) const { return describe(nodes_, links_[link]); }

bool Platform::all_direct(RouteTree& tree) const {
  for (std::uint32_t i = first_incoming_[tree.destination];
       i < first_incoming_[tree.destination + 1]; ++i) {
    const PlatformLink& link = links_[incoming_[i]];
    std::uint32_t& chosen = tree.next_link[link.from];
    if (chosen == no_link || link.latency_s < links_[chosen].latency_s) chosen = incoming_[i];
  }
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (node == tree.destination) continue;
    const std::uint32_t link = tree.next_link[node];
    // Any other way has two links or more.
    if (link == no_link || links_[link].latency_s > 2 * least_latency_s_) return false;
  }
  return true;
}

RouteTree Platform::routes_to(std::uint32_t device) const {
  RouteTree tree{devices_[device], std::vector<std::uint32_t>(nodes_.size(), no_link)};
  if (all_direct(tree)) return tree;
  tree.next_link.assign(nodes_.size(), no_link);
  const Graph graph = graph_of(nodes_, links_);
  const auto reversed = boost::make_reverse_graph(graph);
  constexpr Distance unreachable{std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<std::uint32_t>::max()};
  std::vector<Distance> distance(nodes_.size(), unreachable);
  const auto longer = [](const Distance& a, const Distance& b) {
    return Distance{a.latency_s + b.latency_s, a.hops + b.hops};
  };
  boost::dijkstra_shortest_paths(reversed, devices_[device],
                                 boost::weight_map(get(&Edge::length, reversed))
                                     .distance_map(boost::make_iterator_property_map(
                                         distance.begin(), get(boost::vertex_index, graph)))
                                     .distance_compare(std::less<>())
                                     .distance_combine(longer)
                                     .distance_inf(unreachable)
                                     .distance_zero(Distance{}));
  for (std::uint32_t i = 0; i < links_.size(); ++i) {
    const PlatformLink& link = links_[i];
    if (distance[link.to] == unreachable || link.from == tree.destination) continue;
    if (longer(distance[link.to], {link.latency_s, 1}) != distance[link.from]) continue;
    std::uint32_t& chosen = tree.next_link[link.from];
    if (chosen == no_link || link.to < links_[chosen].to) chosen = i;
  }
  return tree;
}

std::vector<std::uint32_t> Platform::route(std::uint32_t from_device, const RouteTree& tree) const {
  std::vector<std::uint32_t> path;
  for (std::uint32_t at = devices_[from_device]; at != tree.destination;) {
    path.push_back(tree.next_link[at]);
    at = links_[path.back()].to;
  }
  return path;
}

}  // namespace kvcast::simulate
