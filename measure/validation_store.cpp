#include "measure/validation_store.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/io/files/fnv_hash.h"
#include "model/methods/method.h"
#include "roofline/hardware_fields.h"

namespace kvcast::measure {
namespace {

using nlohmann::ordered_json;
using roofline::Hardware;
using roofline::Sourced;

constexpr const char* what = "kvcast validation";
constexpr std::uint64_t version = 3;  // 1 did not tell dtypes apart, 2 not numbers of devices

/// Adds the number with the digits of a hardware file, so that a file and its copy agree.
void add(FnvHash& hash, std::string_view name, double value) {
  hash.add(fmt::format("{}={:.6g};", name, value));
}

/// Adds all numbers that move the same forecasts.
void add(FnvHash& hash, const Hardware& hw, roofline::Moves moves) {
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.moves != moves) continue;
    std::string name = field.name();
    if (field.section == "factors" && name == "memory_bandwidth") name += "_factor";
    roofline::for_each_number(
        field, hw, [&](const std::string& suffix, DType, const Sourced& number) {
          add(hash, name + suffix, number.value);
          for (const roofline::FactorAt& point : number.by_length) {
            add(hash, fmt::format("{}{} at {}", name, suffix, point.length), point.value);
          }
        });
  }
}

/// The metrics without a bound.
std::string missing_text(const ErrorBars& bars) {
  if (bars.ttft) return "TPOT";
  return bars.tpot ? "TTFT" : "TTFT and TPOT";
}

/// The method of a Group: "kvr on 2 devices".
std::string on_devices(std::string_view names, std::uint64_t devices) {
  return fmt::format("{} on {} devices", names, devices);
}

std::string_view dtype_text(DType dtype) {
  return dtype == DType::FP16 || dtype == DType::BF16 ? "fp16/bf16" : name(dtype);
}

}  // namespace

std::string dtypes_text(const Lowering& l) {
  const std::string_view weights = dtype_text(l.weights);
  const std::string_view activations = dtype_text(l.operand_dtype());
  const std::string_view cache = dtype_text(l.cache);
  if (weights == activations && weights == cache) return std::string(weights);
  return fmt::format("{} weights, {} activations, {} cache", weights, activations, cache);
}

std::filesystem::path validation_beside(const std::filesystem::path& hardware_file) {
  std::filesystem::path file = hardware_file;
  return file.replace_extension(".validation.json");
}

std::string fingerprint(const roofline::Hardware& hw) {
  FnvHash hash;
  add(hash, hw, roofline::Moves::Steps);
  return hash.text();
}

std::string exchange_fingerprint(const roofline::Hardware& hw) {
  FnvHash hash;
  for (const auto& [name, link] : hw.links) {
    add(hash, name + ".bandwidth", link.bandwidth.value);
    add(hash, name + ".latency", link.latency.value);
  }
  add(hash, hw, roofline::Moves::Exchanges);
  return hash.text();
}

std::string validation_document(const Validation& v, std::string_view source) {
  ordered_json j{{"what", what}, {"version", version}, {"measurements", source}};
  j["devices"] = ordered_json::object();
  for (const auto& [name, hardware] : v.devices) j["devices"][name] = fingerprint(hardware);
  for (const ValidationCase& c : v.cases) {
    if (!find_placement(parse_methods(c.row.method))) continue;
    j["exchanges"][c.row.hardware] = exchange_fingerprint(v.devices.at(c.row.hardware));
  }
  // One row a line, so that diffs in a repository are readable.
  std::string text = json_text(j, 2);
  text.erase(text.rfind('}'));
  text.erase(text.find_last_not_of(" \n") + 1);
  text += ",\n  \"rows\": [";
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    const std::string& method = v.cases[i].row.method;
    const bool placed = find_placement(parse_methods(method)).has_value();
    const ordered_json all = case_json(v.cases[i]);
    ordered_json row;
    for (const auto& [key, value] : all.items()) {
      if (key == "elementwise" || key == "place") continue;
      if (key == "predicted" && placed) row["num_devices"] = num_devices(method);
      row[key] = value;
      if (value.is_number_float()) row[key] = std::stod(fmt::format("{:.6g}", value.get<double>()));
    }
    row["method"] = method_names(method);
    text += (i == 0 ? "\n    " : ",\n    ") + json_text(row);
  }
  return text + "\n  ]\n}\n";
}

ValidationStore::ValidationStore(const Catalog& catalog, const std::string& hardware) {
  std::error_code ec;
  const std::filesystem::path folder = catalog.root() / validation_folder;
  if (std::filesystem::is_directory(folder, ec)) add(folder);
  const std::vector<std::string> names = catalog.names("hardware");
  if (std::find(names.begin(), names.end(), hardware) != names.end()) return;
  const std::filesystem::path beside = validation_beside(hardware);
  if (std::filesystem::is_regular_file(beside, ec)) add(beside);
}

void ValidationStore::add(const std::filesystem::path& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const std::filesystem::path& file : files) add(file);
    return;
  }
  const nlohmann::json document = read_json_file(path);
  const JsonObject o(document, path.string());
  if (o.text("what") != what) o.fail("what", std::string("\"") + what + "\"");
  if (o.whole("version") != version) {
    o.fail("version", fmt::format("{}; kvcast validate --store writes it anew", version));
  }
  const JsonObject devices = o.object("devices");
  std::optional<JsonObject> exchanges;
  if (o.has("exchanges")) exchanges = o.object("exchanges");
  const nlohmann::json& rows = o.at("rows");
  if (!rows.is_array()) o.fail("rows", "a list");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonObject row(rows[i], fmt::format("{}: /rows/{}", path.string(), i));
    const std::string device = row.text("hardware");
    std::string factors = devices.text(device);
    const double error = row.positive("predicted") / row.positive("measured") - 1;
    if (!std::isfinite(error)) row.fail("measured", "a time");
    const auto dtype = [&row](const char* key) {
      const std::string word = row.text(key);
      const std::vector<std::string> names = dtype_names();
      if (std::find(names.begin(), names.end(), word) == names.end()) row.fail(key, "a dtype");
      return parse_dtype(word);
    };
    const Lowering dtypes{.weights = dtype("weight_dtype"),
                          .activations = dtype("activation_dtype"),
                          .cache = dtype("cache_dtype")};
    std::string method = row.text("method");
    if (row.has("num_devices")) {
      if (exchanges) factors += exchanges->text(device);
      method = on_devices(method, row.whole("num_devices"));
    }
    errors_[{device, factors, method, row.text("attention"), dtypes_text(dtypes),
             row.text("metric")}]
        .push_back(error);
  }
}

ErrorBars ValidationStore::bars(const roofline::Hardware& hardware, std::string_view methods,
                                const Lowering& lowering, Links links) const {
  Group group{hardware.name,         fingerprint(hardware),
              method_names(methods), std::string(attention_name(lowering.attention)),
              dtypes_text(lowering), ""};
  const std::optional<Placement> placed = find_placement(parse_methods(methods));
  if (placed) {
    group.fingerprint += links == Links::OfHardware ? exchange_fingerprint(hardware) : "others";
    group.method = on_devices(group.method, placed->ranks);
  }
  const auto bound = [&](Metric metric, std::size_t& rows) -> std::optional<double> {
    group.metric = name(metric);
    const auto found = errors_.find(group);
    if (found == errors_.end()) return {};
    rows = found->second.size();
    return error_bound(found->second);
  };
  ErrorBars bars;
  bars.ttft = bound(Metric::Ttft, bars.ttft_rows);
  bars.tpot = bound(Metric::Tpot, bars.tpot_rows);
  if (bars.ttft && bars.tpot) return bars;
  bool changed = false;
  std::set<std::string> other_dtypes;
  for (const auto& [g, errors] : errors_) {
    const bool missing = (g.metric == name(Metric::Ttft) && !bars.ttft) ||
                         (g.metric == name(Metric::Tpot) && !bars.tpot);
    if (!missing) continue;
    if (g.device != group.device || g.method != group.method || g.attention != group.attention) {
      continue;
    }
    const bool same_dtypes = g.dtypes == group.dtypes;
    const bool same_factors = g.fingerprint == group.fingerprint;
    changed |= same_dtypes && !same_factors;
    if (same_factors && !same_dtypes) other_dtypes.insert(g.dtypes);
  }
  bars.note = fmt::format(
      "no stored validation of {} with {}, {} attention, {} on {}{}{}: no error bound",
      missing_text(bars), group.method, group.attention, group.dtypes, group.device,
      !changed ? ""
      : placed ? " with these factors and links"
               : " with these factors",
      other_dtypes.empty() ? "" : fmt::format(", only of {}", fmt::join(other_dtypes, "; ")));
  return bars;
}

}  // namespace kvcast::measure
