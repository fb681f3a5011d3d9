// Platform files, as far as costs need them: see data/platforms/README.md.
#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/base/words.h"
#include "model/io/files/csv_table.h"
#include "roofline/base_file.h"
#include "roofline/interconnect.h"

namespace kvcast::roofline {
namespace {

using nlohmann::json;

constexpr std::array file_algorithms{CollectiveAlgorithm::Ring,     CollectiveAlgorithm::Tree,
                                     CollectiveAlgorithm::OneShot,  CollectiveAlgorithm::TwoShot,
                                     CollectiveAlgorithm::InSwitch, CollectiveAlgorithm::Direct};

/// "450 GB/s", or {"value": "450 GB/s", "source": ..., "reference": ...}
double read_number(const JsonObject& o, std::string_view key, Dimension dimension) {
  if (!o.at(key).is_object()) return parse_quantity(o.text(key), dimension, o.place_of(key));
  const JsonObject sourced = o.object(key);
  const std::string source = sourced.text("source");
  if (source != "datasheet" && source != "measured" && source != "fitted") {
    sourced.fail("source", "datasheet, measured or fitted");
  }
  if (sourced.text("reference").empty()) sourced.fail("reference", "a document or a measurement");
  sourced.text_or("note", "");
  const double value = parse_quantity(sourced.text("value"), dimension, sourced.place_of("value"));
  sourced.reject_unknown_keys();
  return value;
}

std::vector<AlgorithmCost::Limit> read_limits(const JsonObject& o) {
  std::vector<AlgorithmCost::Limit> limits;
  for (const std::string& key : o.keys()) {
    std::uint64_t devices = 0;
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), devices);
    if (error != std::errc() || stop != key.data() + key.size() || devices < 2) {
      o.fail(key, "a number of devices above 1 as the key");
    }
    const double bytes = parse_quantity(o.text(key), Dimension::Bytes, o.place_of(key));
    limits.push_back({devices, static_cast<std::uint64_t>(bytes)});
  }
  std::sort(limits.begin(), limits.end(),
            [](const auto& a, const auto& b) { return a.devices < b.devices; });
  return limits;
}

AlgorithmCost read_algorithm(const JsonObject& o, CollectiveAlgorithm algorithm) {
  AlgorithmCost cost;
  cost.algorithm = algorithm;
  for (const char* key : {"source", "reference"}) o.text(key);
  o.text_or("note", "");
  cost.start_s = parse_quantity(o.text("start"), Dimension::Seconds, o.place_of("start"));
  const std::vector<std::string> steps = o.texts("steps");
  const std::vector<std::string> bandwidths = o.texts("bandwidths");
  if (steps.empty() || steps.size() != bandwidths.size()) {
    throw Error(o.place_of("bandwidths"),
                fmt::format("{} for {} steps", bandwidths.size(), steps.size()),
                "one for each step, and at least one");
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double rate =
        parse_quantity(bandwidths[i], Dimension::BytesPerSecond, o.place_of("bandwidths"));
    if (rate <= 0) o.fail("bandwidths", "bandwidths above 0");
    cost.protocols.push_back(
        {parse_quantity(steps[i], Dimension::Seconds, o.place_of("steps")), rate});
  }
  if (o.has("limits")) cost.limits = read_limits(o.object("limits"));
  cost.whole_node = o.flag_or("whole_node", false);
  o.reject_unknown_keys();
  return cost;
}

std::vector<AlgorithmCost> read_library(const JsonObject& o) {
  std::vector<AlgorithmCost> costs;
  for (const CollectiveAlgorithm algorithm : file_algorithms) {
    const std::string key(name(algorithm));
    if (o.has(key)) costs.push_back(read_algorithm(o.object(key), algorithm));
  }
  o.reject_unknown_keys();
  return costs;
}

/// "pcie:group=4"; "switch": 0.
std::uint64_t read_group(const JsonObject& o) {
  const std::string topology = o.text("topology");
  if (topology == "switch") return 0;
  constexpr std::string_view pcie = "pcie:group=";
  std::uint64_t group = 0;
  if (topology.starts_with(pcie)) {
    const char* end = topology.data() + topology.size();
    const auto [stop, error] = std::from_chars(topology.data() + pcie.size(), end, group);
    if (error == std::errc() && stop == end && group > 0) return group;
  }
  o.fail("topology", "switch or pcie:group=N, which costs of collectives know");
}

void read_network(const JsonObject& o, InterconnectData& data) {
  data.network_bytes_per_s = read_number(o, "bandwidth", Dimension::BytesPerSecond);
  data.network_payload_bytes_per_s = o.has("payload")
                                         ? read_number(o, "payload", Dimension::BytesPerSecond)
                                         : data.network_bytes_per_s;
  data.network_latency_s = read_number(o, "latency", Dimension::Seconds);
  if (data.network_payload_bytes_per_s > data.network_bytes_per_s) {
    o.fail("payload", "at most the bandwidth");
  }
  o.reject_unknown_keys();
}

/// One device, or a list of devices with the same links.
std::vector<std::string> hardware_of(const JsonObject& o) {
  if (!o.has("hardware")) return {};
  if (o.at("hardware").is_array()) return o.texts("hardware");
  return {o.text("hardware")};
}

CollectiveKind operation_of(const CsvRow& row) {
  try {
    return parse_operation(row.text("operation"));
  } catch (const Error& e) {
    throw Error(row.place("operation"), e);
  }
}

}  // namespace

nlohmann::json platform_document(const std::filesystem::path& path) {
  json document = read_json_file(path);
  const JsonObject o(document, path.string());
  if (!o.has("extends")) return document;
  json merged = read_base(o, path, "extends");
  document.erase("extends");
  merged.merge_patch(document);
  return merged;
}

InterconnectData read_interconnect(const json& document, const std::string& place,
                                   const std::filesystem::path& tables) {
  const JsonObject o(document, place);
  InterconnectData data;
  data.name = o.text_or("name", place);
  for (const char* key : {"description", "reference"}) o.text_or(key, "");
  hardware_of(o);
  if (!o.has("topology") && o.has("links")) {
    throw Error(place, "links one by one", "a topology (switch or pcie:group=N), which costs need");
  }
  data.pcie_group = read_group(o);
  data.devices_per_node = o.whole("devices");
  data.nodes = o.whole_or("nodes", 1);
  data.link_bytes_per_s = read_number(o, "bandwidth", Dimension::BytesPerSecond);
  data.link_latency_s = read_number(o, "latency", Dimension::Seconds);
  if (o.has("host_memory")) {
    data.host_bytes_per_s = read_number(o, "host_memory", Dimension::BytesPerSecond);
  }
  if (o.has("network")) {
    read_network(o.object("network"), data);
  } else if (data.nodes > 1) {
    throw Error(place, "several nodes and no network", "its bandwidth and latency");
  }
  if (o.has("libraries")) {
    const JsonObject libraries = o.object("libraries");
    for (const std::string& key : libraries.keys()) {
      data.libraries[key] = read_library(libraries.object(key));
    }
  }
  const std::string hardware = o.text_or("tables", "");
  if (!hardware.empty() && !tables.empty()) {
    const CsvTable csv = CsvTable::read(tables);
    for (const CsvRow& row : csv.rows()) {
      if (row.text("hardware") != hardware) continue;
      const std::string& library = row.text("library");  // with its version
      const std::string known = library.substr(0, library.find(' '));
      const double bytes = row.number("message_bytes");
      const double us = row.number("latency_us");
      CollectiveTable& table = data.tables[{known, operation_of(row), row.whole("num_gpus")}];
      if (us <= 0) throw Error(row.place("latency_us"), row.text("latency_us"), "more than 0");
      if (!table.empty() && bytes <= table.back().first) {
        throw Error(row.place("message_bytes"), row.text("message_bytes"),
                    "more than in the row before");
      }
      table.emplace_back(bytes, us * 1e-6);
      data.libraries.try_emplace(known);
    }
    if (data.tables.empty()) {
      throw Error(o.place_of("tables"), "'" + hardware + "', and no row of " + csv.name(),
                  "the hardware of some rows");
    }
    for (const auto& [key, table] : data.tables) {
      if (table.size() < 2) throw Error(tables.string(), "one size alone", "two or more");
    }
  }
  o.reject_unknown_keys();
  return data;
}

std::shared_ptr<const Interconnect> on_switch(std::string name, std::uint64_t devices,
                                              double bytes_per_s, double latency_s) {
  InterconnectData data;
  data.name = std::move(name);
  data.devices_per_node = devices;
  data.link_bytes_per_s = bytes_per_s;
  data.link_latency_s = latency_s / 2;  // a path through the switch has two links
  return std::make_shared<const Interconnect>(std::move(data));
}

std::shared_ptr<const Interconnect> find_interconnect(const Catalog& catalog,
                                                      const std::string& text,
                                                      const Hardware& hardware,
                                                      std::uint64_t devices) {
  if (!text.empty()) return std::make_shared<const Interconnect>(load_interconnect(catalog, text));
  for (const std::string& name : catalog.names("platforms")) {
    const std::filesystem::path path = catalog.find("platforms", "platform", name);
    const json document = platform_document(path);
    const std::vector<std::string> joined = hardware_of({document, path.string()});
    const bool joins = std::find(joined.begin(), joined.end(), hardware.name) != joined.end();
    if (!joins || document.contains("nodes")) continue;
    return std::make_shared<const Interconnect>(load_interconnect(catalog, name));
  }
  for (const auto& [name, link] : hardware.links) {
    if (link.bandwidth.source != Source::Measured) continue;
    return on_switch(fmt::format("{} by {}", hardware.name, name), devices, link.bandwidth.value,
                     link.latency.value);
  }
  throw Error("several devices of " + hardware.name +
              ": no platform joins them; expected --platform "
              "NAME, or a file that mpirun -n 2 kvcast calibrate wrote");
}

Interconnect load_interconnect(const Catalog& catalog, const std::string& text) {
  const std::filesystem::path path = catalog.find("platforms", "platform", text);
  return Interconnect(read_interconnect(platform_document(path), path.string(),
                                        catalog.root() / "platforms" / "collectives.csv"));
}

}  // namespace kvcast::roofline
