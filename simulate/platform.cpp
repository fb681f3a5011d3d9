#include "simulate/platform.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/reverse_graph.hpp>
#include <fmt/format.h>

#include "model/error.h"

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

/// Which nodes can be reached from one.
template <typename G>
std::vector<char> reached_from(const G& graph, std::uint32_t start) {
  std::vector<boost::default_color_type> colors(num_vertices(graph));
  boost::breadth_first_search(
      graph, start,
      boost::color_map(boost::make_iterator_property_map(
          colors.begin(), get(boost::vertex_index, graph), boost::default_color_type())));
  std::vector<char> reached(colors.size());
  for (std::size_t i = 0; i < colors.size(); ++i) reached[i] = colors[i] == boost::black_color;
  return reached;
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
    if (!(link.bytes_per_s > 0) || !std::isfinite(link.bytes_per_s)) {
      throw Error(where, fmt::format("{} bytes per second", link.bytes_per_s),
                  "a bandwidth above zero");
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
  // If all reach the first and the first reaches all, then everyone reaches everyone.
  const Graph graph = graph_of(nodes_, links_);
  const std::vector<char> forth = reached_from(graph, devices_.front());
  const std::vector<char> back = reached_from(boost::make_reverse_graph(graph), devices_.front());
  for (const std::uint32_t d : devices_) {
    if (forth[d] && back[d]) continue;
    const std::string& first = nodes_[devices_.front()].name;
    throw Error(place + ": no path leads from " + (forth[d] ? nodes_[d].name : first) + " to " +
                (forth[d] ? first : nodes_[d].name) +
                "; expected links, one per direction, that join every device to every other");
  }
}

std::string Platform::link_name(std::uint32_t link) const { return describe(nodes_, links_[link]); }

RouteTree Platform::routes_to(std::uint32_t device) const {
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
  RouteTree tree{devices_[device], std::vector<std::uint32_t>(nodes_.size(), no_link)};
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
