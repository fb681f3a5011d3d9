#include "simulate/platform.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/weights/catalog.h"
#include "simulate/platform_json.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"

namespace kvcast::simulate {
namespace {

using nlohmann::json;

/// "device0 -> switch, switch -> device2"
std::string route_text(const Platform& platform, std::uint32_t from, std::uint32_t to) {
  std::string text;
  for (const std::uint32_t link : platform.route(from, platform.routes_to(to))) {
    text += (text.empty() ? "" : ", ") + platform.link_name(link);
  }
  return text;
}

Platform built_in(const std::string& topology, std::uint32_t devices) {
  return make_platform(parse_topology(topology), devices, 100, 1);
}

TEST_CASE("simulate: the built-in platforms have the links and routes that they should") {
  struct Case {
    std::string topology;
    std::uint32_t devices;
    std::size_t links;  ///< of one direction each
    std::string route_0_to_2;
  };
  const std::vector<Case> cases{
      {"ring", 5, 10, "device0 -> device1, device1 -> device2"},
      {"ring", 3, 6, "device0 -> device2"},
      {"chain", 5, 8, "device0 -> device1, device1 -> device2"},
      {"switch", 5, 10, "device0 -> switch, switch -> device2"},
      {"crossbar", 5, 20, "device0 -> device2"},
      {"pcie:group=2", 5, 16,
       "device0 -> pcie switch0, pcie switch0 -> host bridge, host bridge -> pcie switch1, "
       "pcie switch1 -> device2"},
      {"fat-tree:group=3", 5, 14, "device0 -> leaf0, leaf0 -> device2"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.topology);
    const Platform platform = built_in(c.topology, c.devices);
    CHECK(platform.num_devices() == c.devices);
    CHECK(platform.links().size() == c.links);
    CHECK(route_text(platform, 0, 2) == c.route_0_to_2);
  }
  CHECK(built_in("ring", 2).links().size() == 2);  // just 0 -> 1 and 1 -> 0
  CHECK(built_in("ring", 1).links().empty());
}

TEST_CASE("simulate: platforms of the catalog are the built-in topologies written out, or nodes") {
  struct Case {
    std::string file, topology;
    std::uint32_t devices;
    double bytes_per_s, latency_s;
  };
  const std::vector<Case> cases{
      {"chain-4", "chain", 4, 150e9, 10.8e-6},
      {"crossbar-4", "crossbar", 4, 100e9, 10.8e-6},
      {"fat-tree-16", "fat-tree:group=4,oversubscription=2", 16, 25e9, 1e-6},
      {"pcie-8", "pcie:group=4", 8, 32e9, 5e-6},
      {"ring-4", "ring", 4, 150e9, 10.8e-6},
      {"switch-8", "switch", 8, 300e9, 5.4e-6}};
  using Wire = std::tuple<std::string, double, double>;
  const auto wires = [](const Platform& p) {
    std::vector<Wire> all;
    for (std::uint32_t l = 0; l < p.links().size(); ++l) {
      all.emplace_back(p.link_name(l), p.links()[l].bytes_per_s, p.links()[l].latency_s);
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  const std::string folder = KVCAST_SOURCE_DIR "/data/platforms/";
  std::vector<std::string> files{"a100-pcie-8",  "a100-roce-2",   "dgx-a100",   "dgx-a100-2",
                                 "dgx-a100-8",   "hgx-b200",      "hgx-b200-2", "hgx-h100",
                                 "hgx-h100-128", "hgx-h100-2",    "hgx-h100-8", "hgx-h200",
                                 "l40s-8",       "dgx-a100-40gb", "hgx-a800",   "hgx-b300",
                                 "hgx-h800",     "rtx-4090-8",    "rtx-5090-8", "rtx-pro-6000-8"};
  for (const std::string& file : files) {
    const std::string number = file.substr(file.rfind('-') + 1);
    const bool cluster =
        number == "2" || number == "128" || file == "dgx-a100-8" || file == "hgx-h100-8";
    CAPTURE(file);
    CHECK(read_platform(folder + file + ".json").num_devices() ==
          (cluster ? 8 * std::stoul(number) : 8));
  }
  CHECK(read_platform(folder + "gb200-nvl72.json").num_devices() == 72);
  files.emplace_back("gb200-nvl72");
  for (const Case& c : cases) {
    CAPTURE(c.file);
    const Platform platform = read_platform(folder + c.file + ".json");
    const Platform made =
        make_platform(parse_topology(c.topology), c.devices, c.bytes_per_s, c.latency_s);
    CHECK(platform.num_devices() == c.devices);
    CHECK(wires(platform) == wires(made));
    for (std::uint32_t to = 1; to < c.devices; ++to) {
      CHECK(route_text(platform, 0, to) == route_text(made, 0, to));
    }
    files.push_back(c.file);
  }
  // Of these only forecasts are made.
  for (const char* const file : {"dgx-a100-512", "hgx-h100-1024"}) {
    CHECK(message_of([&] {
            read_platform(folder + file + ".json");
          }).ends_with("expected at most 1024 devices"));
    files.emplace_back(file);
  }
  std::sort(files.begin(), files.end());
  CHECK(Catalog(KVCAST_SOURCE_DIR "/data").names("platforms") == files);
}

TEST_CASE("simulate: the links of the longest way") {
  for (const auto& [topology, devices] : {std::pair{"switch", 8U},
                                          {"crossbar", 5U},
                                          {"pcie:group=4", 4U},
                                          {"pcie:group=4", 5U},
                                          {"fat-tree:group=2", 2U},
                                          {"fat-tree:group=2", 8U}}) {
    CAPTURE(topology);
    CAPTURE(devices);
    const Topology parsed = parse_topology(topology);
    const Platform platform = make_platform(parsed, devices, 1e9, 1e-6);
    std::size_t longest = 0;
    for (std::uint32_t to = 0; to < devices; ++to) {
      const RouteTree tree = platform.routes_to(to);
      for (std::uint32_t from = 0; from < devices; ++from) {
        if (from != to) longest = std::max(longest, platform.route(from, tree).size());
      }
    }
    CHECK(links_between(parsed, devices) == longest);
  }
}

TEST_CASE("simulate: direct links are taken unless a way round is shorter") {
  const auto routes = [](double direct_s) {
    return Platform({{"a", NodeKind::Device}, {"b", NodeKind::Device}, {"c", NodeKind::Device}},
                    {{0, 1, 9, 1},
                     {1, 0, 9, 1},
                     {1, 2, 9, 1},
                     {2, 1, 9, 1},
                     {0, 2, 9, direct_s},
                     {2, 0, 9, direct_s}},
                    "p");
  };
  CHECK(route_text(routes(2), 0, 2) == "a -> c");  // as long as the way round, in one hop
  CHECK(route_text(routes(2.5), 0, 2) == "a -> b, b -> c");
}

TEST_CASE("simulate: a crossbar of the most devices finds all its routes") {
  const Platform crossbar = built_in("crossbar", max_devices);
  for (std::uint32_t to = 0; to < max_devices; ++to) {
    const std::uint32_t from = (to + 7) % max_devices;
    const std::vector<std::uint32_t> route = crossbar.route(from, crossbar.routes_to(to));
    REQUIRE(route.size() == 1);
    CHECK(crossbar.links()[route[0]].from == from);
    CHECK(crossbar.links()[route[0]].to == to);
  }
}

TEST_CASE("simulate: a leaf's link to the root is as fat as its devices, or oversubscribed") {
  // Leaf 0 has 3 devices of 100 B/s, leaf 1 the other 2.
  const auto fattest = [](const std::string& topology) {
    std::vector<double> to_root;
    const Platform platform = built_in(topology, 5);
    for (const PlatformLink& link : platform.links()) {
      if (platform.nodes()[link.to].name == "root") to_root.push_back(link.bytes_per_s);
    }
    return to_root;
  };
  CHECK(fattest("fat-tree:group=3") == std::vector<double>{300, 200});
  CHECK(fattest("fat-tree:group=3,oversubscription=4") == std::vector<double>{75, 50});
}

TEST_CASE("simulate: routes are those of least latency, then of fewest hops, then lowest nodes") {
  // Nodes a b c d e. From a to e: over b 3 s, over c 2 s, over d 2 s; a long way over c and d 2 s.
  const auto platform = [](double c_to_d) {
    return Platform({{"a"}, {"b"}, {"c"}, {"d"}, {"e"}},
                    {{0, 1, 9, 1},
                     {1, 4, 9, 2},
                     {0, 3, 9, 1},
                     {3, 4, 9, 1},
                     {0, 2, 9, 1},
                     {2, 4, 9, 1},
                     {2, 4, 5, 1},
                     {2, 3, 9, c_to_d},
                     {4, 0, 9, 1}},
                    "test");
  };
  CHECK(route_text(platform(0), 0, 4) == "a -> c, c -> e");
  // Of two equal links the first.
  CHECK(platform(0).route(2, platform(0).routes_to(4)) == std::vector<std::uint32_t>{5});
  CHECK(route_text(platform(0), 1, 0) == "b -> e, e -> a");
  CHECK(route_text(platform(0), 3, 2) == "d -> e, e -> a, a -> c");
}

TEST_CASE("simulate: opposite devices of an even ring are reached over the lower neighbour") {
  CHECK(route_text(built_in("ring", 4), 0, 2) == "device0 -> device1, device1 -> device2");
  CHECK(route_text(built_in("ring", 4), 3, 1) == "device3 -> device0, device0 -> device1");
}

TEST_CASE("simulate: topologies read back as they are written") {
  for (const char* text : {"ring", "chain", "switch", "crossbar", "pcie:group=2",
                           "fat-tree:group=8,oversubscription=1.5"}) {
    CHECK(to_string(parse_topology(text)) == text);
  }
  const auto failure = [](const char* text) { return message_of([&] { parse_topology(text); }); };
  CHECK(failure("rnig") == "unknown topology 'rnig'; did you mean 'ring'?");
  CHECK(failure("ring:group=2") == "ring:group=2: the topology ring takes no options");
  CHECK(failure("pcie:grup=2") == "unknown option 'grup'; did you mean 'group'?");
  CHECK(failure("pcie:group=0") ==
        "option 'group': got '0', expected a number of devices from 1 to 1024");
  CHECK(failure("pcie:group") ==
        "option 'group': got '', expected a number of devices from 1 to 1024");
  CHECK(failure("fat-tree:oversubscription=-1") ==
        "option 'oversubscription': got '-1', expected a number above 0");
}

TEST_CASE("simulate: a platform comes from JSON") {
  const Platform graph = parse_platform(json::parse(R"({"name": "two boxes",
    "devices": ["gpu0", "gpu1"], "switches": ["spine"], "links": [
      {"from": "gpu0", "to": "spine", "bandwidth": "25 GB/s", "latency": "5 us",
       "both_directions": true},
      {"from": "gpu1", "to": "spine", "bandwidth": "50 GB/s", "latency": "1 us"},
      {"from": "spine", "to": "gpu1", "bandwidth": "20 GB/s", "latency": "1 us"}]})"),
                                        "two.json");
  CHECK(graph.num_devices() == 2);
  CHECK(route_text(graph, 1, 0) == "gpu1 -> spine, spine -> gpu0");
  CHECK(graph.links()[1].bytes_per_s == 25e9);
  CHECK(graph.links()[1].latency_s == 5e-6);
  const Platform ring =
      parse_platform(json::parse(R"({"topology": "ring", "devices": 3, "bandwidth": "1 GB/s",
                      "latency": "2 us"})"),
                     "ring.json");
  CHECK(ring.links().size() == 6);
}

TEST_CASE("simulate: a wrong platform is refused in one line") {
  const std::string wire = R"("bandwidth": "1 GB/s", "latency": "1 us")";
  const auto failure = [](const std::string& text) {
    return message_of([&] { parse_platform(json::parse(text), "p.json"); });
  };
  const auto with_links = [&](const std::string& links) {
    return failure(R"({"devices": ["a", "b"], "links": [)" + links + "]}");
  };
  CHECK(with_links("") ==
        "p.json: no path leads from a to b and back; expected links, one per direction, that join "
        "every device to every other");
  for (const char* one_way : {R"({"from": "a", "to": "b", )", R"({"from": "b", "to": "a", )"}) {
    CHECK(with_links(one_way + wire + "}").starts_with("p.json: no path leads from a to b and"));
  }
  CHECK(with_links(R"({"from": "a", "to": "bb", )" + wire + "}") ==
        "p.json: /links/0/to: unknown node 'bb'; did you mean 'b'?");
  CHECK(with_links(R"({"from": "a", "to": "a", )" + wire + "}") ==
        "p.json: link 0: got ends 0 and 0, expected two of the 2 nodes");
  CHECK(with_links(R"({"from": "a", "to": "b", "bandwidth": 5, "latency": "1 us"})") ==
        "p.json: /links/0/bandwidth: got 5, expected a string");
  CHECK(with_links(R"({"from": "a", "to": "b", "bandwidth": "0 GB/s", "latency": "1 us"})") ==
        "p.json: link a -> b: got 0 bytes per second, expected a bandwidth of at least 1");
  CHECK(with_links(R"({"from": "a", "to": "b", "speed": 1, )" + wire + "}") ==
        "p.json: /links/0: unknown key 'speed'; expected one of: bandwidth, both_directions, from, "
        "latency, to");
  CHECK(failure(R"({"devices": ["a", "a"], "links": []})") ==
        "p.json: /devices: got 'a' twice, expected a name of its own for each node");
  CHECK(failure(R"({"devices": [], "links": []})") == "p.json: got 0 devices, expected 1 to 1024");
  CHECK(failure(R"({"topology": "ring", "devices": 2000, )" + wire + "}") ==
        "p.json: /devices: got 2000, expected 1 to 1024");
  CHECK(failure(R"({"topology": "rig", "devices": 2, )" + wire + "}") ==
        "p.json: /topology: unknown topology 'rig'; did you mean 'ring'?");
  CHECK(message_of([] { make_platform({TopologyKind::Ring}, 2, 0, 0); }) ==
        "platform ring: link device0 -> device1: got 0 bytes per second, expected a bandwidth "
        "of at least 1");
}

}  // namespace
}  // namespace kvcast::simulate
