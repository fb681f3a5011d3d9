#include "simulate/platform_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "roofline/interconnect.h"
#include "simulate/collectives.h"
#include "simulate/topologies.h"

namespace kvcast::simulate {
namespace {

using nlohmann::json;

constexpr std::size_t max_switches = 4096;
constexpr std::size_t max_links = 1 << 20;

struct Wire {
  double bytes_per_s = 0;
  double latency_s = 0;
};

Wire read_wire(const JsonObject& o) {
  return {parse_quantity(o.text("bandwidth"), Dimension::BytesPerSecond, o.place_of("bandwidth")),
          parse_quantity(o.text("latency"), Dimension::Seconds, o.place_of("latency"))};
}

const json& list_at(const JsonObject& o, const char* key, std::size_t most) {
  const json& list = o.at(key);
  if (!list.is_array() || list.size() > most) {
    throw Error(o.place_of(key),
                list.is_array() ? fmt::format("{} entries", list.size()) : "no list",
                fmt::format("a list of at most {} entries", most));
  }
  return list;
}

/// Nodes by name, in the order of the file: devices before switches.
class NodeNames {
 public:
  void read(const JsonObject& o, const char* key, NodeKind kind, std::size_t most) {
    for (const json& entry : list_at(o, key, most)) {
      if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) {
        o.fail(key, "a list of names");
      }
      const auto& name = entry.get_ref<const std::string&>();
      if (!indices_.emplace(name, static_cast<std::uint32_t>(nodes_.size())).second) {
        throw Error(o.place_of(key), "'" + name + "' twice", "a name of its own for each node");
      }
      nodes_.push_back({name, kind});
    }
  }
  std::uint32_t index(const JsonObject& link, const char* key) const {
    const std::string name = link.text(key);
    const auto found = indices_.find(name);
    if (found != indices_.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, i] : indices_) names.push_back(known);
    throw Error(link.place_of(key), unknown_name("node", name, names));
  }
  std::vector<Node> take() { return std::move(nodes_); }

 private:
  std::vector<Node> nodes_;
  std::map<std::string, std::uint32_t> indices_;
};

Platform read_graph(const JsonObject& o) {
  NodeNames names;
  names.read(o, "devices", NodeKind::Device, max_devices);
  if (o.has("switches")) names.read(o, "switches", NodeKind::Switch, max_switches);
  std::vector<PlatformLink> links;
  std::size_t i = 0;
  for (const json& entry : list_at(o, "links", max_links)) {
    const JsonObject link(entry, fmt::format("{}/{}", o.place_of("links"), i++));
    const Wire wire = read_wire(link);
    const std::uint32_t from = names.index(link, "from");
    const std::uint32_t to = names.index(link, "to");
    links.push_back({from, to, wire.bytes_per_s, wire.latency_s});
    if (link.flag_or("both_directions", false)) {
      links.push_back({to, from, wire.bytes_per_s, wire.latency_s});
    }
    link.reject_unknown_keys();
  }
  o.reject_unknown_keys();
  return {names.take(), std::move(links), o.place()};
}

}  // namespace

Platform parse_platform(const json& document, const std::string& place) {
  const JsonObject o(document, place);
  for (const char* key : {"name", "description", "reference"}) o.text_or(key, "");
  if (!o.has("topology")) return read_graph(o);
  const auto is_node = [&o](const char* key) { return o.has(key); };
  constexpr std::array node_keys{"hardware",  "nodes",  "network",
                                 "libraries", "tables", "host_memory"};
  if (std::any_of(node_keys.begin(), node_keys.end(), is_node)) {
    return node_platform(roofline::read_interconnect(document, place, {}));
  }
  Topology topology;
  try {
    topology = parse_topology(o.text("topology"));
  } catch (const Error& e) {
    throw Error(o.place_of("topology"), e);
  }
  const std::uint64_t devices = o.whole("devices");
  if (devices > max_devices) o.fail("devices", fmt::format("1 to {}", max_devices));
  const Wire wire = read_wire(o);
  o.reject_unknown_keys();
  return make_platform(topology, static_cast<std::uint32_t>(devices), wire.bytes_per_s,
                       wire.latency_s);
}

Platform read_platform(const std::filesystem::path& path) {
  return parse_platform(roofline::platform_document(path), path.string());
}

}  // namespace kvcast::simulate
