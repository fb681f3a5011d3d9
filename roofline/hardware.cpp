#include "roofline/hardware.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"

namespace kvcast::roofline {
namespace {

Source read_source(const JsonObject& o) {
  const std::string text = o.text("source");
  for (const Source s : {Source::Datasheet, Source::Measured, Source::Fitted}) {
    if (text == name(s)) return s;
  }
  o.fail("source", "datasheet, measured or fitted");
}

Sourced read_provenance(const JsonObject& o) {
  Sourced s;
  s.source = read_source(o);
  s.reference = o.text("reference");
  if (s.reference.empty()) o.fail("reference", "a document, a file or a measurement");
  s.note = o.text_or("note", "");
  return s;
}

/// {"value": "2039 GB/s", "source": ..., "reference": ...}
Sourced read_quantity(const JsonObject& parent, std::string_view key, Dimension dimension) {
  const JsonObject o = parent.object(key);
  Sourced s = read_provenance(o);
  if (!o.at("value").is_string()) {
    parse_quantity(o.at("value").dump(), dimension, o.place_of("value"));  // throws: no unit
  }
  s.value = parse_quantity(o.text("value"), dimension, o.place_of("value"));
  const bool may_be_zero = dimension == Dimension::Seconds;
  if (s.value == 0 && !may_be_zero) o.fail("value", "a quantity above zero");
  o.reject_unknown_keys();
  return s;
}

/// {"lengths": [1024, 2048], "values": [0.55, 0.47]}
std::vector<FactorAt> read_by_length(const JsonObject& o) {
  const std::vector<std::uint64_t> lengths = o.wholes("lengths");
  const std::vector<double> values = o.positives("values");
  o.reject_unknown_keys();
  if (values.size() != lengths.size()) {
    o.fail("values", fmt::format("{} numbers, one for each length", lengths.size()));
  }
  std::vector<FactorAt> points;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (values[i] > 1) o.fail("values", "shares of the peak, above 0 and at most 1");
    if (i > 0 && lengths[i] <= lengths[i - 1]) o.fail("lengths", "each longer than the one before");
    // Searches rest on it: more keys never take less time.
    const auto row_s = [&](std::size_t j) { return static_cast<double>(lengths[j]) / values[j]; };
    if (i > 0 && row_s(i) <= row_s(i - 1)) {
      throw Error(o.place_of("values"),
                  fmt::format("{:g} at {} and {:g} at {}", values[i - 1], lengths[i - 1], values[i],
                              lengths[i]),
                  "a row that takes longer than a shorter one");
    }
    points.push_back({lengths[i], values[i]});
  }
  return points;
}

enum class ByLength { No, Maybe };

/// {"value": 0.85, "source": ..., "reference": ...}
Sourced read_factor(const JsonObject& parent, std::string_view key,
                    ByLength by_length = ByLength::No) {
  const JsonObject o = parent.object(key);
  Sourced s = read_provenance(o);
  s.value = o.positive("value");
  if (s.value > 1) o.fail("value", "a share, above 0 and at most 1");
  if (by_length == ByLength::Maybe && o.has("by_length")) {
    s.by_length = read_by_length(o.object("by_length"));
  }
  o.reject_unknown_keys();
  return s;
}

template <typename Read>
std::map<DType, Sourced> by_dtype(const JsonObject& o, Read read) {
  std::map<DType, Sourced> values;
  for (const std::string& key : o.keys()) {
    DType dtype;
    try {
      dtype = parse_dtype(key);
    } catch (const Error& e) {
      throw Error(o.place() + ": " + e.what());
    }
    values.emplace(dtype, read(o, key));
  }
  return values;
}

std::map<DType, Sourced> factors_by_dtype(const JsonObject& factors, std::string_view key,
                                          ByLength by_length = ByLength::No) {
  if (!factors.has(key)) return {};
  return by_dtype(factors.object(key), [&](const JsonObject& o, const std::string& dtype) {
    return read_factor(o, dtype, by_length);
  });
}

std::optional<Sourced> optional_factor(const JsonObject& factors, std::string_view key,
                                       ByLength by_length = ByLength::No) {
  if (!factors.has(key)) return {};
  return read_factor(factors, key, by_length);
}

void read_factors(const JsonObject& factors, Hardware& hw) {
  hw.matrix_rate = factors_by_dtype(factors, "matrix_rate");
  hw.batched_matrix_rate = factors_by_dtype(factors, "batched_matrix_rate");
  hw.tiled_attention_rate = factors_by_dtype(factors, "tiled_attention_rate", ByLength::Maybe);
  hw.decode_attention_rate = factors_by_dtype(factors, "decode_attention_rate");
  hw.memory_bandwidth_factor = optional_factor(factors, "memory_bandwidth");
  hw.product_bandwidth = optional_factor(factors, "product_bandwidth");
  hw.elementwise_bandwidth = optional_factor(factors, "elementwise_bandwidth");
  hw.softmax_bandwidth = optional_factor(factors, "softmax_bandwidth", ByLength::Maybe);
  hw.decode_attention_bandwidth = optional_factor(factors, "decode_attention_bandwidth");
  hw.tiled_attention_bandwidth = optional_factor(factors, "tiled_attention_bandwidth");
  hw.overlap = optional_factor(factors, "overlap");
  hw.link_rate = optional_factor(factors, "link_rate");
  hw.lockstep = optional_factor(factors, "lockstep");
  factors.reject_unknown_keys();
}

/// First of all, for a file of a newer kvcast may have entries that this one does not know.
void check_version(const JsonObject& o) {
  if (!o.has("calibration") || !o.object("calibration").has("version")) return;
  const JsonObject calibration = o.object("calibration");
  if (calibration.whole("version") <= calibration_version) return;
  calibration.fail("version",
                   fmt::format("at most {}: a newer kvcast wrote the file", calibration_version));
}

/// A number that is said anew is not what its base measured at several lengths.
void forget_lengths(nlohmann::json& of_base, const nlohmann::json& own) {
  if (!of_base.is_object() || !own.is_object()) return;
  if (own.contains("value")) of_base.erase("by_length");
  for (const auto& [key, entry] : own.items()) {
    if (of_base.contains(key)) forget_lengths(of_base[key], entry);
  }
}

/// The file, or the one it extends with its own entries in the place of that one's.
nlohmann::json read_extended(const std::filesystem::path& path) {
  nlohmann::json document = read_json_file(path);
  const JsonObject o(document, path.string());
  if (!o.has("extends")) return document;
  const std::string base = o.text("extends");
  if (base.empty() || base.find_first_of("/\\") != std::string::npos || base.front() == '.') {
    o.fail("extends", "the name of another file in its folder, without .json");
  }
  nlohmann::json extended = read_json_file(path.parent_path() / (base + ".json"));
  const JsonObject of_base(extended, path.string() + ": /extends");
  if (of_base.has("extends")) o.fail("extends", "a file that extends no other one");
  document.erase("extends");
  forget_lengths(extended, document);
  extended.merge_patch(document);
  return extended;
}

}  // namespace

std::string_view name(Source source) {
  switch (source) {
    case Source::Datasheet: return "datasheet";
    case Source::Measured: return "measured";
    case Source::Fitted: return "fitted";
  }
  KVCAST_ASSERT(false);
  return {};
}

DType Hardware::supported(DType dtype) const {
  if (peak_flops_per_second.contains(dtype)) return dtype;
  // Products of a missing dtype are converted to the next wider one; the two of 16 bits stand for
  // each other, and GGUF's blocks become floats of 16 bits.
  constexpr std::array by_precision{DType::INT4, DType::INT8, DType::FP8, DType::BF16,
                                    DType::FP16, DType::TF32, DType::FP32};
  const bool starts_at_16_bits = dtype == DType::FP16 || width(dtype).block_elements > 1;
  const DType first = starts_at_16_bits ? DType::BF16 : dtype;
  for (auto wider = std::find(by_precision.begin(), by_precision.end(), first);
       wider != by_precision.end(); ++wider) {
    if (peak_flops_per_second.contains(*wider)) return *wider;
  }
  throw Error("hardware " + name,
              "no peak for " + std::string(kvcast::name(dtype)) + " or a wider dtype",
              "a device that can multiply it");
}

Hardware read_hardware(const std::filesystem::path& path) {
  const nlohmann::json document = read_extended(path);
  const JsonObject o(document, path.string());
  check_version(o);
  Hardware hw;
  hw.name = o.text("name");
  hw.description = o.text_or("description", hw.name);
  hw.kind = o.text("kind");
  if (hw.kind != "gpu" && hw.kind != "cpu" && hw.kind != "tpu") o.fail("kind", "gpu, cpu or tpu");
  hw.peak_flops_per_second =
      by_dtype(o.object("peak_flops_per_second"), [](const JsonObject& p, const std::string& key) {
        return read_quantity(p, key, Dimension::FlopsPerSecond);
      });
  if (hw.peak_flops_per_second.empty()) {
    o.fail("peak_flops_per_second", "the peak of at least one dtype");
  }
  hw.vector_flops_per_second =
      read_quantity(o, "vector_flops_per_second", Dimension::FlopsPerSecond);
  hw.memory_bandwidth = read_quantity(o, "memory_bandwidth", Dimension::BytesPerSecond);
  hw.memory_capacity = read_quantity(o, "memory_capacity", Dimension::Bytes);
  hw.on_chip_memory_capacity = read_quantity(o, "on_chip_memory_capacity", Dimension::Bytes);
  if (o.has("on_chip_memory_bandwidth")) {
    hw.on_chip_memory_bandwidth =
        read_quantity(o, "on_chip_memory_bandwidth", Dimension::BytesPerSecond);
  }
  if (o.has("links")) {
    const JsonObject links = o.object("links");
    for (const std::string& key : links.keys()) {
      const JsonObject link = links.object(key);
      hw.links.emplace(key, Link{read_quantity(link, "bandwidth", Dimension::BytesPerSecond),
                                 read_quantity(link, "latency", Dimension::Seconds)});
      link.reject_unknown_keys();
    }
  }
  const JsonObject latency = o.object("latency");
  hw.operator_latency = read_quantity(latency, "operator", Dimension::Seconds);
  hw.host_operator_latency = read_quantity(latency, "host_operator", Dimension::Seconds);
  if (latency.has("elementwise")) {
    hw.elementwise_latency = read_quantity(latency, "elementwise", Dimension::Seconds);
  }
  if (latency.has("product")) {
    hw.product_latency = read_quantity(latency, "product", Dimension::Seconds);
  }
  if (latency.has("host_message")) {
    hw.host_message_latency = read_quantity(latency, "host_message", Dimension::Seconds);
  }
  if (latency.has("host_exchange")) {
    hw.host_exchange_latency = read_quantity(latency, "host_exchange", Dimension::Seconds);
  }
  latency.reject_unknown_keys();
  if (o.has("factors")) read_factors(o.object("factors"), hw);
  if (o.has("calibration")) o.object("calibration").text("date");
  o.reject_unknown_keys();
  return hw;
}

std::string hardware_document(const std::filesystem::path& path) {
  read_hardware(path);
  return read_extended(path).dump();
}

Hardware load_hardware(const Catalog& catalog, const std::string& name_or_path) {
  return read_hardware(catalog.find("hardware", "hardware", name_or_path));
}

}  // namespace kvcast::roofline
