#include "roofline/hardware.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"
#include "model/base/words.h"
#include "roofline/base_file.h"
#include "roofline/hardware_fields.h"

namespace kvcast::roofline {
namespace {

constexpr Words<Source, 3> source_words = {
    {{Source::Datasheet, "datasheet"}, {Source::Measured, "measured"}, {Source::Fitted, "fitted"}}};

Source read_source(const JsonObject& o) {
  const std::string text = o.text("source");
  for (const auto& [source, word] : source_words) {
    if (text == word) return source;
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

/// {"value": 0.85, "source": ..., "reference": ...}
Sourced read_factor(const JsonObject& parent, std::string_view key, const Field& field) {
  const JsonObject o = parent.object(key);
  Sourced s = read_provenance(o);
  const bool is_zero = field.may_be_zero && o.at("value") == 0;
  s.value = is_zero ? 0 : o.positive("value");
  if (s.value > 1) o.fail("value", "a share, above 0 and at most 1");
  if (field.by_length && o.has("by_length")) s.by_length = read_by_length(o.object("by_length"));
  o.reject_unknown_keys();
  return s;
}

Sourced read_number(const JsonObject& parent, std::string_view key, const Field& field) {
  switch (field.unit) {
    case Unit::FlopsPerSecond: return read_quantity(parent, key, Dimension::FlopsPerSecond);
    case Unit::BytesPerSecond: return read_quantity(parent, key, Dimension::BytesPerSecond);
    case Unit::Bytes: return read_quantity(parent, key, Dimension::Bytes);
    case Unit::Seconds: return read_quantity(parent, key, Dimension::Seconds);
    case Unit::Share: return read_factor(parent, key, field);
  }
  KVCAST_ASSERT(false);
  return {};
}

DType read_dtype(const JsonObject& o, const std::string& key) {
  try {
    return parse_dtype(key);
  } catch (const Error& e) {
    throw Error(o.place(), e);
  }
}

void read_field(const JsonObject& section, const Field& field, Hardware& hw) {
  const bool required = std::holds_alternative<Sourced Hardware::*>(field.member) ||
                        (field.per_dtype() && field.unit == Unit::FlopsPerSecond);
  if (!required && !section.has(field.key)) return;
  if (!field.per_dtype()) {
    return field.set(hw, DType::FP32, read_number(section, field.key, field));
  }
  const JsonObject o = section.object(field.key);
  for (const std::string& key : o.keys()) {
    const DType dtype = read_dtype(o, key);
    field.set(hw, dtype, read_number(o, key, field));
  }
}

/// Checked first: a file of a newer kvcast may have entries that this one does not know.
void check_version(const JsonObject& o) {
  if (!o.has("calibration") || !o.object("calibration").has("version")) return;
  const JsonObject calibration = o.object("calibration");
  if (calibration.whole("version") <= calibration_version) return;
  calibration.fail("version",
                   fmt::format("at most {}: a newer kvcast wrote the file", calibration_version));
}

/// A number that a file gives anew drops what its base measured at several lengths.
void forget_lengths(nlohmann::json& of_base, const nlohmann::json& own) {
  if (!of_base.is_object() || !own.is_object()) return;
  if (own.contains("value")) of_base.erase("by_length");
  for (const auto& [key, entry] : own.items()) {
    if (of_base.contains(key)) forget_lengths(of_base[key], entry);
  }
}

/// Says of each number in `entry` that it is another device's.
void mark_inherited(nlohmann::json& entry, const std::string& of) {
  if (!entry.is_object()) return;
  if (!entry.contains("value")) {
    for (auto& [key, inner] : entry.items()) mark_inherited(inner, of);
    return;
  }
  entry["source"] = name(Source::Fitted);
  if (entry.contains("reference") && entry["reference"].is_string()) {
    entry["reference"] = "taken from " + of + ": " + entry["reference"].get<std::string>();
  }
}

/// The file with what it takes over: `extends` gives all entries that it lacks, `relative` only
/// factors and latencies.
nlohmann::json read_extended(const std::filesystem::path& path) {
  nlohmann::json document = read_json_file(path);
  const JsonObject o(document, path.string());
  const bool extends = o.has("extends");
  if (extends && o.has("relative")) o.fail("relative", "only one of 'extends' and 'relative'");
  if (!extends && !o.has("relative")) return document;
  const std::string key = extends ? "extends" : "relative";
  nlohmann::json base = read_base(o, path, key);
  if (!extends) {
    const std::string of = o.text(key);
    nlohmann::json shares = nlohmann::json::object();
    for (const char* section : {"factors", "latency"}) {
      if (!base.contains(section)) continue;
      shares[section] = std::move(base[section]);
      mark_inherited(shares[section], of);
    }
    base = std::move(shares);
  }
  document.erase(key);
  forget_lengths(base, document);
  base.merge_patch(document);
  return base;
}

}  // namespace

std::string_view name(Source source) { return word_for(source, source_words); }

DType Hardware::activations_of(std::optional<DType> stored_operands, DType dtype) const {
  const bool multiplies = stored_operands && peak_flops_per_second.contains(*stored_operands);
  return multiplies ? *stored_operands : dtype;
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

Hardware at_clock(Hardware hw, double share) {
  for (const Field& field : hardware_fields()) {
    for_each_number(field, hw, [&](const std::string&, DType, Sourced& number) {
      const bool on_chip = field.unit == Unit::BytesPerSecond && field.key.starts_with("on_chip");
      if (on_chip || field.unit == Unit::FlopsPerSecond) number.value *= share;
      if (field.unit == Unit::Seconds) number.value /= share;
    });
  }
  return hw;
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
  hw.architecture = o.text_or("architecture", "");
  if (o.has("aliases")) o.texts("aliases");  // the catalog's: see Catalog::find
  std::map<std::string_view, JsonObject> sections;
  for (const Field& field : hardware_fields()) {
    if (field.section.empty()) {
      read_field(o, field, hw);
    } else if (field.section == "latency" || o.has(field.section)) {
      const auto section = sections.try_emplace(field.section, o.object(field.section)).first;
      read_field(section->second, field, hw);
    }
  }
  for (const auto& [key, section] : sections) section.reject_unknown_keys();
  if (hw.peak_flops_per_second.empty()) {
    o.fail("peak_flops_per_second", "the peak of at least one dtype");
  }
  if (o.has("links")) {
    const JsonObject links = o.object("links");
    for (const std::string& key : links.keys()) {
      const JsonObject link = links.object(key);
      const auto& read =
          hw.links
              .emplace(key, Link{read_quantity(link, "bandwidth", Dimension::BytesPerSecond),
                                 read_quantity(link, "latency", Dimension::Seconds)})
              .first->second;
      if (read.bandwidth.value < 1) {
        link.object("bandwidth").fail("value", "a bandwidth of at least 1 B/s");
      }
      link.reject_unknown_keys();
    }
  }
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
