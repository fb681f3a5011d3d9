#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/frame/this_machine.h"
#include "model/base/order_statistics.h"
#include "model/base/quantity.h"
#include "reports/sweep/stored_validations.h"
#include "roofline/hardware.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::cli {
namespace {

using roofline::Hardware;
using roofline::Sourced;

struct HardwareOptions {
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

/// How the factors between peaks and rates are known, ["measured", "fitted"]; empty: there are
/// none.
ordered_json calibrated_by(const Hardware& hw) {
  std::set<roofline::Source> sources;
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.section != "factors") continue;
    roofline::for_each_number(
        field, hw, [&](const std::string&, DType, const Sourced& s) { sources.insert(s.source); });
  }
  ordered_json words = ordered_json::array();
  for (const roofline::Source s : {roofline::Source::Measured, roofline::Source::Fitted}) {
    if (sources.contains(s)) words.push_back(roofline::name(s));
  }
  return words;
}

/// Stored comparisons with measurements; null where there are none.
ordered_json validation_json(std::vector<double> errors) {
  if (errors.empty()) return nullptr;
  return {{"rows", errors.size()},
          {"median_error", median(errors)},
          {"p90_error", quantile(errors, 0.9)}};
}

/// What is said below the list of the user's own machine.
std::string this_machine_text() {
  const std::filesystem::path file = this_machine_file();
  std::error_code missing;
  return !file.empty() && std::filesystem::exists(file, missing)
             ? "this machine, the default of --hardware: " + file.string() + "\n"
             : "this machine: not calibrated; kvcast calibrate makes it the default of "
               "--hardware\n";
}

constexpr const char* list_notes =
    "calibrated: whether the factors between peaks and reached rates are measured, fitted or "
    "both;\n"
    "  empty: there are none, and forecasts are what the device could do at best\n"
    "error: of forecasts of TTFT and TPOT against stored measurements on this device; nine of ten\n"
    "  rows stay below p90\n";

void list_hardware(const Globals& globals, bool json) {
  const Catalog catalog = globals.catalog();
  const measure::ValidationStore store = reports::stored_validations(catalog, {});
  const ordered_json rows = rows_of(catalog.names("hardware"), [&](const std::string& name) {
    const Hardware hw = roofline::load_hardware(catalog, name);
    ordered_json j = hardware_json(hw);
    const DType fp16 = hw.supported(DType::FP16);
    j["fp16_flops_per_second"] = hw.peak_flops_per_second.find(fp16)->second.value;
    j["calibrated_by"] = calibrated_by(hw);
    j["validation"] = validation_json(store.errors_of(hw));
    return j;
  });
  const auto peak = [](const ordered_json& v) {
    return format_quantity(v.get<double>(), Dimension::FlopsPerSecond);
  };
  const auto by = [](const ordered_json& sources) {
    if (sources.size() == 2) return std::string("both");
    return sources.empty() ? std::string() : sources[0].get<std::string>();
  };
  print_result(json, rows,
               table_text({{"name", "name"},
                           {"fp16 peak", "fp16_flops_per_second", peak},
                           {"bandwidth", "memory_bandwidth_bytes_per_s", in_bytes_per_second},
                           {"memory", "memory_capacity_bytes", in_bytes},
                           {"calibrated", "calibrated_by", by},
                           {"median error", "/validation/median_error", in("{:.0f} %", 100)},
                           {"p90 error", "/validation/p90_error", in("{:.0f} %", 100)},
                           {"rows", "/validation/rows"}},
                          rows) +
                   list_notes + this_machine_text());
}

void show(const HardwareOptions& o, const Globals& globals) {
  const ordered_json j = hardware_json(roofline::load_hardware(globals.catalog(), o.hardware));
  if (o.json) {
    print_json(j);
    return;
  }
  Table table({"quantity (base units)", "value", "source", "reference"}, Table::Long::Wrap);
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
  const auto options = std::make_shared<HardwareOptions>();
  Command list_command = command.add_subcommand("list", "List every device of the catalog.");
  list_command.add("--json", options->json);
  list_command.callback([options, &globals] { list_hardware(globals, options->json); });

  Command c = command.add_subcommand("show", "Show one device: every number with its source.");
  c.add("HARDWARE", options->hardware, "catalog name or a JSON file").required();
  c.add("--json", options->json);
  c.callback([options, &globals] { show(*options, globals); });
}

}  // namespace kvcast::cli
