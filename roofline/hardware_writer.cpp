#include "roofline/hardware_writer.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

ordered_json rate(const Sourced& s, DType dtype) {
  if (is_integer(dtype)) return quantity(s, 1e9, "GOP/s");
  return quantity(s, 1e9, "GFLOP/s");
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

ordered_json factors_of(const Hardware& hw) {
  ordered_json factors = ordered_json::object();
  const auto by_dtype = [&](const char* key, const std::map<DType, Sourced>& values) {
    for (const auto& [dtype, s] : values) factors[key][std::string(name(dtype))] = factor(s);
  };
  const auto single = [&](const char* key, const std::optional<Sourced>& s) {
    if (s) factors[key] = factor(*s);
  };
  by_dtype("matrix_rate", hw.matrix_rate);
  by_dtype("batched_matrix_rate", hw.batched_matrix_rate);
  by_dtype("tiled_attention_rate", hw.tiled_attention_rate);
  by_dtype("decode_attention_rate", hw.decode_attention_rate);
  single("decode_attention_bandwidth", hw.decode_attention_bandwidth);
  single("tiled_attention_bandwidth", hw.tiled_attention_bandwidth);
  single("memory_bandwidth", hw.memory_bandwidth_factor);
  single("product_bandwidth", hw.product_bandwidth);
  single("elementwise_bandwidth", hw.elementwise_bandwidth);
  single("softmax_bandwidth", hw.softmax_bandwidth);
  single("overlap", hw.overlap);
  single("link_rate", hw.link_rate);
  single("lockstep", hw.lockstep);
  return factors;
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
  for (const auto& [dtype, peak] : hw.peak_flops_per_second) {
    j["peak_flops_per_second"][std::string(name(dtype))] = rate(peak, dtype);
  }
  j["vector_flops_per_second"] = rate(hw.vector_flops_per_second, DType::FP32);
  j["memory_bandwidth"] = quantity(hw.memory_bandwidth, 1e9, "GB/s");
  j["memory_capacity"] = quantity(hw.memory_capacity, 1e9, "GB");
  j["on_chip_memory_capacity"] = quantity(hw.on_chip_memory_capacity, 1 << 20, "MiB");
  if (hw.on_chip_memory_bandwidth) {
    j["on_chip_memory_bandwidth"] = quantity(*hw.on_chip_memory_bandwidth, 1e9, "GB/s");
  }
  j["links"] = ordered_json::object();
  for (const auto& [key, link] : hw.links) {
    j["links"][key] = {{"bandwidth", quantity(link.bandwidth, 1e9, "GB/s")},
                       {"latency", quantity(link.latency, 1e-6, "us")}};
  }
  j["latency"]["operator"] = quantity(hw.operator_latency, 1e-6, "us");
  if (hw.elementwise_latency) {
    j["latency"]["elementwise"] = quantity(*hw.elementwise_latency, 1e-6, "us");
  }
  if (hw.product_latency) {
    j["latency"]["product"] = quantity(*hw.product_latency, 1e-6, "us");
  }
  j["latency"]["host_operator"] = quantity(hw.host_operator_latency, 1e-6, "us");
  if (hw.host_message_latency) {
    j["latency"]["host_message"] = quantity(*hw.host_message_latency, 1e-6, "us");
  }
  if (hw.host_exchange_latency) {
    j["latency"]["host_exchange"] = quantity(*hw.host_exchange_latency, 1e-6, "us");
  }
  j["factors"] = factors_of(hw);
  return j;
}

}  // namespace kvcast::roofline
