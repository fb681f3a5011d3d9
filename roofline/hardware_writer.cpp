#include "roofline/hardware_writer.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "roofline/hardware_fields.h"

namespace kvcast::roofline {
namespace {

using nlohmann::ordered_json;

ordered_json sourced(const Sourced& s, ordered_json value) {
  ordered_json j{
      {"value", std::move(value)}, {"source", name(s.source)}, {"reference", s.reference}};
  if (!s.note.empty()) j["note"] = s.note;
  return j;
}

ordered_json quantity(const Sourced& s, double unit, const char* unit_name) {
  const double value = s.value / unit;
  return sourced(s, s.source == Source::Measured ? fmt::format("{:.5g} {}", value, unit_name)
                                                 : fmt::format("{:.12g} {}", value, unit_name));
}

ordered_json factor(const Sourced& s) {
  const auto rounded = [&](double value) {
    const bool digits = s.source == Source::Measured && value >= 0.01;
    return digits ? std::round(value * 1e4) / 1e4 : value;
  };
  ordered_json j = sourced(s, rounded(s.value));
  if (!s.by_length.empty()) {
    std::vector<FactorAt> points = s.by_length;
    for (FactorAt& point : points) point.value = rounded(point.value);
    j["by_length"] = by_length_json(points);
  }
  return j;
}

ordered_json number(const Field& field, DType dtype, const Sourced& s) {
  switch (field.unit) {
    case Unit::FlopsPerSecond: return quantity(s, 1e9, is_integer(dtype) ? "GOP/s" : "GFLOP/s");
    case Unit::BytesPerSecond: return quantity(s, 1e9, "GB/s");
    case Unit::Bytes:
      if (field.key == "on_chip_memory_capacity") return quantity(s, 1 << 20, "MiB");
      return quantity(s, 1e9, "GB");
    case Unit::Seconds: return quantity(s, 1e-6, "us");
    case Unit::Share: return factor(s);
  }
  return {};
}

}  // namespace

ordered_json by_length_json(const std::vector<FactorAt>& points) {
  ordered_json j;
  for (const FactorAt& point : points) {
    j["lengths"].push_back(point.length);
    j["values"].push_back(point.value);
  }
  return j;
}

ordered_json hardware_entries(const Hardware& hw) {
  ordered_json j{{"name", hw.name}, {"description", hw.description}, {"kind", hw.kind}};
  if (!hw.architecture.empty()) j["architecture"] = hw.architecture;
  j["links"] = ordered_json::object();
  for (const auto& [key, link] : hw.links) {
    j["links"][key] = {{"bandwidth", quantity(link.bandwidth, 1e9, "GB/s")},
                       {"latency", quantity(link.latency, 1e-6, "us")}};
  }
  for (const Field& field : hardware_fields()) {
    ordered_json& section = field.section.empty() ? j : j[std::string(field.section)];
    if (section.is_null()) section = ordered_json::object();
    for_each_number(field, hw, [&](const std::string&, DType dtype, const Sourced& s) {
      ordered_json& entry = section[std::string(field.key)];
      (field.per_dtype() ? entry[std::string(kvcast::name(dtype))] : entry) =
          number(field, dtype, s);
    });
  }
  return j;
}

}  // namespace kvcast::roofline
