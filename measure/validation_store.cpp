#include "measure/validation_store.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
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
constexpr std::uint64_t version =
    4;  // 1 did not tell dtypes apart, 2 not numbers of devices, 3 not sources

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

/// "kvr on 2 devices"
std::string on_devices(std::string_view names, std::uint64_t devices) {
  return fmt::format("{} on {} devices", names, devices);
}

std::string weights_text(DType weights) {
  const double bits = bits_per_element(weights);
  if (bits >= 16) return "weights of 16 bits or more";
  return bits >= 8 ? "8-bit weights" : "weights below 8 bits";
}

std::string_view dtype_text(DType dtype) {
  return dtype == DType::FP16 || dtype == DType::BF16 ? "fp16/bf16" : name(dtype);
}

}  // namespace

std::string dtypes_text(const Lowering& l) {
  const std::string_view weights = dtype_text(l.weights.main);
  const std::string_view activations = dtype_text(l.operand_dtype());
  const std::string_view cache = dtype_text(l.cache);
  const bool other_products = l.products && *l.products != l.operand_dtype();
  if (weights == activations && weights == cache && !other_products) return std::string(weights);
  return fmt::format("{} weights, {} activations, {}{} cache", weights, activations,
                     other_products ? fmt::format("{} products, ", name(*l.products)) : "", cache);
}

Estimated estimated(const ValidationCase& c, const Devices& devices) {
  return {devices.at(c.row.hardware), c.row.engine, c.row.method, c.row.lowering};
}

std::optional<Regime> regime_of(Metric metric, const roofline::DesignPoint& size,
                                double ttft_share) {
  switch (metric) {
    case Metric::Ttft: return prefill_regime(size);
    case Metric::Tpot: return decode_regime(size);
    case Metric::Request: return ttft_share > 0.5 ? prefill_regime(size) : decode_regime(size);
    case Metric::TrainingStep: return Regime::Training;
    case Metric::Product:
    case Metric::PrefillAttention:
    case Metric::DecodeAttention: return {};
  }
  KVCAST_ASSERT(false);
  return {};
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

std::string validation_document(const Validation& v, std::string_view source,
                                std::span<const ordered_json> kept) {
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
      if (key == "source" && value == "") continue;
      row[key] = value;
      if (value.is_number_float()) row[key] = std::stod(fmt::format("{:.6g}", value.get<double>()));
    }
    row["method"] = method_names(method);
    const auto add = [&row](const char* key, double value) {
      row[key] = std::stod(fmt::format("{:.6g}", value));
    };
    add("ideal", v.cases[i].ideal);
    if (v.cases[i].metric == Metric::Request) add("ttft_share", v.cases[i].ttft_share);
    text += (i == 0 ? "\n    " : ",\n    ") + json_text(row);
  }
  for (const ordered_json& row : kept) text += ",\n    " + json_text(row);
  return text + "\n  ]\n}\n";
}

ValidationStore::ValidationStore(const Catalog& catalog, const std::vector<std::string>& hardware)
    : catalog_(catalog), names_(catalog.names("hardware")) {
  std::error_code ec;
  const std::filesystem::path folder = catalog.root() / validation_folder;
  if (std::filesystem::is_directory(folder, ec)) add(folder);
  for (const std::string& device : hardware) {
    if (std::find(names_.begin(), names_.end(), device) != names_.end()) continue;
    const std::filesystem::path beside = validation_beside(device);
    if (std::filesystem::is_regular_file(beside, ec)) add(beside);
  }
}

ValidationStore::ValidationStore(const Catalog& catalog, const Validation& v)
    : catalog_(catalog), names_(catalog.names("hardware")) {
  for (const ValidationCase& c : v.cases) {
    const MeasuredRow& r = c.row;
    const std::optional<Regime> regime = regime_of(c.metric, r.size, c.ttft_share);
    if (!regime) continue;
    rows_.push_back({setup_of(estimated(c, v.devices)), *regime, source_key(r.source),
                     std::log(c.predicted / c.measured), std::log(c.ideal / c.measured)});
  }
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
    add_row(JsonObject(rows[i], fmt::format("{}: /rows/{}", path.string(), i)), devices, exchanges);
  }
}

void ValidationStore::add_row(const JsonObject& row, const JsonObject& devices,
                              const std::optional<JsonObject>& exchanges) {
  const std::string device = row.text("hardware");
  Setup setup{.device = device, .fingerprint = devices.text(device)};
  const CatalogDevice* known = find_device(device);
  if (known != nullptr && known->fingerprint == setup.fingerprint) {
    setup.architecture = known->hardware.architecture;
    setup.kind = known->hardware.kind;
  }
  const double measured = row.positive("measured");
  ErrorRow error;
  error.error = std::log(row.positive("predicted") / measured);
  if (!std::isfinite(error.error)) row.fail("measured", "a time");
  const auto dtype = [&row](const char* key) {
    static const std::vector<std::string> names = dtype_names();
    const std::string word = row.text(key);
    if (std::find(names.begin(), names.end(), word) == names.end()) row.fail(key, "a dtype");
    return parse_dtype(word);
  };
  const DType weights = dtype("weight_dtype");
  setup.weights = weights_text(weights);
  Lowering lowering{
      .weights = weights, .activations = dtype("activation_dtype"), .cache = dtype("cache_dtype")};
  if (row.has("arithmetic")) lowering.products = dtype("arithmetic");
  setup.dtypes = dtypes_text(lowering);
  setup.engine = row.text("engine");
  setup.attention = row.text("attention");
  setup.method = row.text("method");
  setup.placed = row.has("num_devices");
  if (setup.placed) {
    if (exchanges) setup.fingerprint += exchanges->text(device);
    setup.method = on_devices(setup.method, row.whole("num_devices"));
  }
  error.ideal_error = std::log(row.positive("ideal") / measured);
  error.source = row.text_or("source", "");
  const std::string metric = row.text("metric");
  const roofline::DesignPoint size{row.whole("batch"), row.whole("prompt_len"),
                                   row.whole("output_len")};
  for (const Metric m : {Metric::Ttft, Metric::Tpot, Metric::Request, Metric::TrainingStep}) {
    if (metric != name(m)) continue;
    error.regime = *regime_of(m, size, m == Metric::Request ? row.positive("ttft_share") : 0);
    error.setup = std::move(setup);
    rows_.push_back(std::move(error));
    return;
  }
}

const ValidationStore::CatalogDevice* ValidationStore::find_device(const std::string& name) {
  const auto known = devices_.find(name);
  if (known != devices_.end()) return &known->second;
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return nullptr;
  const Hardware hardware = roofline::load_hardware(catalog_, name);
  return &devices_.emplace(name, CatalogDevice{hardware, fingerprint(hardware)}).first->second;
}

Setup ValidationStore::setup_of(const Estimated& e) {
  const Hardware& hw = e.hardware;
  Setup s{.device = hw.name,
          .fingerprint = fingerprint(hw),
          .architecture = hw.architecture,
          .kind = hw.kind,
          .engine = e.engine,
          .method = method_names(e.methods),
          .attention = std::string(attention_name(e.lowering.attention)),
          .dtypes = dtypes_text(e.lowering),
          .weights = weights_text(e.lowering.weights.main)};
  if (s.architecture.empty()) {
    const CatalogDevice* of_catalog = find_device(hw.name);
    if (of_catalog != nullptr) s.architecture = of_catalog->hardware.architecture;
  }
  if (const std::optional<Placement> placement = find_placement(parse_methods(e.methods))) {
    s.placed = true;
    s.fingerprint += e.links == Links::OfHardware ? exchange_fingerprint(hw) : "others";
    s.method = on_devices(s.method, placement->ranks);
  }
  return s;
}

BoundOrReason ValidationStore::bound(const Estimated& estimate, Regime regime,
                                     const std::optional<std::string>& without) {
  return error_bound(rows_, setup_of(estimate), regime, without);
}

ErrorBars ValidationStore::bars(const Estimated& estimate, const roofline::DesignPoint& size) {
  const Setup setup = setup_of(estimate);
  const BoundOrReason ttft = error_bound(rows_, setup, prefill_regime(size), {});
  const BoundOrReason tpot = error_bound(rows_, setup, decode_regime(size), {});
  const bool neither = !ttft.bound && !tpot.bound;
  return {ttft.bound, tpot.bound, ttft.reason + (neither ? "; " : "") + tpot.reason};
}

std::vector<double> ValidationStore::errors_of(const Hardware& hw) const {
  const std::string own = fingerprint(hw);
  std::vector<double> errors;
  for (const ErrorRow& row : rows_) {
    // Those of several devices have a fingerprint of their links behind the device's.
    if (row.setup.device != hw.name || !row.setup.fingerprint.starts_with(own)) continue;
    if (row.regime == Regime::Training) continue;
    errors.push_back(std::expm1(std::abs(row.error)));
  }
  return errors;
}

}  // namespace kvcast::measure
