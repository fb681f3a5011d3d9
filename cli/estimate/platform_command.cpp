#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/frame/result.h"
#include "model/io/weights/catalog.h"
#include "roofline/interconnect.h"
#include "simulate/platform_json.h"

namespace kvcast::cli {
namespace {

using nlohmann::json;

struct PlatformOptions {
  std::string platform;
  bool json = false;
};

/// The file's document, once it has been checked; a key with null is a missing one.
json checked_platform(const Catalog& catalog, const std::string& name) {
  const std::filesystem::path path = catalog.find("platforms", "platform", name);
  // Larger clusters are for forecasts alone.
  const json checked = roofline::platform_document(path);
  const bool is_large =
      checked.contains("nodes") && checked["nodes"].is_number_unsigned() &&
      roofline::load_interconnect(catalog, name).devices() > simulate::max_devices;
  if (!is_large) simulate::read_platform(path);
  json platform = json::object();
  const json document = roofline::platform_document(path);
  for (const auto& [key, value] : document.items()) {
    if (!value.is_null()) platform[key] = value;
  }
  return platform;
}

bool is_about(const std::string& key) {
  return key == "source" || key == "reference" || key == "note";
}

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array() && !value.is_object()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& [key, part] : value.items()) {
    const bool named = value.is_object() && key != "value";
    if (!value.is_object() || !is_about(key)) {
      parts.push_back((named ? key + " " : "") + text_of(part));
    }
  }
  return fmt::format("{}", fmt::join(parts, value.is_object() ? ", " : " / "));
}

/// One row for each value of a platform, with its source where it has one of its own.
void add_rows(const json& object, const std::string& place, Table& table) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = place.empty() ? key : place + " " + key;
    if (!value.is_object()) {
      table.add({name, text_of(value), "", ""});
    } else if (!value.contains("source")) {
      add_rows(value, name, table);
    } else {
      const std::string reference = value.contains("reference") ? text_of(value["reference"]) : "";
      table.add({name, text_of(value), text_of(value["source"]), reference});
    }
  }
}

ordered_json listed(const std::string& name, const json& platform) {
  const json& devices = platform["devices"];
  std::vector<std::string> libraries;
  if (platform.contains("libraries")) {
    for (const auto& [library, of] : platform["libraries"].items()) libraries.push_back(library);
  }
  return {{"name", name},
          {"hardware", platform.value("hardware", json(""))},
          {"nodes", platform.value("nodes", 1)},
          {"devices_per_node", devices.is_array() ? json(devices.size()) : devices},
          {"topology", platform.value("topology", "link by link")},
          {"libraries", libraries},
          {"description", platform.value("description", "")}};
}

void list_platforms(const Globals& globals, bool as_json) {
  const Catalog catalog = globals.catalog();
  ordered_json rows = ordered_json::array();
  for (const std::string& name : catalog.names("platforms")) {
    rows.push_back(listed(name, checked_platform(catalog, name)));
  }
  const Words joined = [](const ordered_json& value) { return text_of(value); };
  print_result(as_json, rows,
               table_text({{"name", "name"},
                           {"hardware", "hardware", joined},
                           {"nodes", "nodes"},
                           {"devices each", "devices_per_node"},
                           {"collectives of", "libraries", joined},
                           {"description", "description"}},
                          rows));
}

void show(const PlatformOptions& o, const Globals& globals) {
  json platform = checked_platform(globals.catalog(), o.platform);
  if (o.json) return print_json(platform);
  const std::string heading = fmt::format("{}: {}\n", platform.value("name", o.platform),
                                          platform.value("description", ""));
  platform.erase("name");
  platform.erase("description");
  Table table({"key", "value", "source", "reference"}, Table::Long::Wrap);
  add_rows(platform, "", table);
  print_text(heading + table.text());
}

}  // namespace

void add_platform(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "platform",
      "List and show platforms: which devices are joined, by which links, and what collectives "
      "reach on them.\n\nExamples:\n"
      "  kvcast platform show hgx-h100\n"
      "  kvcast platform list --json");
  command.require_subcommand(1);
  const auto options = std::make_shared<PlatformOptions>();
  Command list_command = command.add_subcommand("list", "List every platform of the catalog.");
  list_command.add("--json", options->json);
  list_command.callback([options, &globals] { list_platforms(globals, options->json); });

  Command c = command.add_subcommand("show", "Show one platform: every value with its source.");
  c.add("PLATFORM", options->platform, "catalog name or a JSON file").required();
  c.add("--json", options->json);
  c.callback([options, &globals] { show(*options, globals); });
}

}  // namespace kvcast::cli
