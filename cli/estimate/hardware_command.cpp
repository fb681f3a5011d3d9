#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "model/base/quantity.h"
#include "roofline/hardware.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using roofline::Hardware;
using roofline::Sourced;

struct Options {
  std::string hardware;
  bool json = false;
};

ordered_json source_json(const Sourced& s) {
  ordered_json j{{"source", roofline::name(s.source)}, {"reference", s.reference}};
  if (!s.note.empty()) j["note"] = s.note;
  if (!s.by_length.empty()) j["by_length"] = roofline::by_length_json(s.by_length);
  return j;
}

/// Values under their keys, and their sources under the same keys in "sources".
ordered_json hardware_json(const Hardware& hw) {
  ordered_json values;
  ordered_json sources;
  const auto add = [&](const std::string& key, const Sourced& s) {
    values[key] = s.value;
    sources[key] = source_json(s);
  };
  for (const roofline::Field& field : roofline::hardware_fields()) {
    const std::string key = field.printed();
    roofline::for_each_number(field, hw, [&](const std::string&, DType dtype, const Sourced& s) {
      if (!field.per_dtype()) return add(key, s);
      values[key][std::string(name(dtype))] = s.value;
      sources[key][std::string(name(dtype))] = source_json(s);
    });
  }
  for (const auto& [link, l] : hw.links) {
    add("link_" + link + "_bytes_per_s", l.bandwidth);
    add("link_" + link + "_latency_s", l.latency);
  }
  ordered_json j{{"name", hw.name}, {"description", hw.description}, {"kind", hw.kind}};
  if (!hw.architecture.empty()) j["architecture"] = hw.architecture;
  j.update(values);
  j["sources"] = sources;
  return j;
}

void add_rows(Table& table, const std::string& key, const ordered_json& value,
              const ordered_json& source) {
  if (value.is_object()) {
    for (const auto& [dtype, number] : value.items()) {
      add_rows(table, key + " " + dtype, number, source[dtype]);
    }
    return;
  }
  const auto add = [&](const std::string& name, const ordered_json& number) {
    table.add({name, shortest(number.get<double>()), source["source"].get<std::string>(),
               source["reference"].get<std::string>()});
  };
  add(key, value);
  if (!source.contains("by_length")) return;
  const ordered_json& by_length = source["by_length"];
  for (std::size_t i = 0; i < by_length["lengths"].size(); ++i) {
    add(fmt::format("{} at {}", key, by_length["lengths"][i].get<std::uint64_t>()),
        by_length["values"][i]);
  }
}

void list(const Globals& globals, bool json) {
  const Catalog catalog = globals.catalog();
  Table table({"name", "description", "fp16 peak", "bandwidth", "memory"});
  ordered_json rows = ordered_json::array();
  for (const std::string& name : catalog.names("hardware")) {
    const Hardware hw = roofline::load_hardware(catalog, name);
    rows.push_back(hardware_json(hw));
    const auto peak = hw.peak_flops_per_second.find(hw.supported(DType::FP16));
    table.add({name, hw.description, format_quantity(peak->second.value, Dimension::FlopsPerSecond),
               format_quantity(hw.memory_bandwidth.value, Dimension::BytesPerSecond),
               format_quantity(hw.memory_capacity.value, Dimension::Bytes)});
  }
  print_result(json, rows, table.text());
}

void show(const Options& o, const Globals& globals) {
  const ordered_json j = hardware_json(roofline::load_hardware(globals.catalog(), o.hardware));
  if (o.json) {
    print_json(j);
    return;
  }
  Table table({"quantity (base units)", "value", "source", "reference"});
  for (const auto& [key, value] : j["sources"].items()) add_rows(table, key, j[key], value);
  print_text(j["name"].get<std::string>() + ": " + j["description"].get<std::string>() + "\n" +
             table.text());
}

}  // namespace

void add_hardware(Command app, const Globals& globals) {
  Command command =
      app.add_subcommand("hardware",
                         "List and show devices: the catalog or any hardware file.\n\nExamples:\n"
                         "  kvcast hardware show a100-80gb\n"
                         "  kvcast hardware list --json");
  command.require_subcommand(1);
  const auto options = std::make_shared<Options>();
  Command list_command = command.add_subcommand("list", "List every device of the catalog.");
  list_command.add("--json", options->json);
  list_command.callback([options, &globals] { list(globals, options->json); });

  Command c = command.add_subcommand("show", "Show one device: every number with its source.");
  c.add("HARDWARE", options->hardware, "catalog name or a JSON file").required();
  c.add("--json", options->json);
  c.callback([options, &globals] { show(*options, globals); });
}

}  // namespace kvcast::cli
