#include "roofline/hardware_fields.h"

namespace kvcast::roofline {
namespace {

using H = Hardware;

constexpr bool by_length = true;
constexpr bool fitted = true;
constexpr bool may_be_zero = true;

// clang-format off
const Field fields[] = {
    {"", "peak_flops_per_second", Unit::FlopsPerSecond, &H::peak_flops_per_second},
    {"", "vector_flops_per_second", Unit::FlopsPerSecond, &H::vector_flops_per_second},
    {"", "memory_bandwidth", Unit::BytesPerSecond, &H::memory_bandwidth},
    {"", "memory_capacity", Unit::Bytes, &H::memory_capacity, Moves::Nothing},
    {"", "on_chip_memory_capacity", Unit::Bytes, &H::on_chip_memory_capacity},
    {"", "on_chip_memory_bandwidth", Unit::BytesPerSecond, &H::on_chip_memory_bandwidth},
    {"latency", "operator", Unit::Seconds, &H::operator_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"latency", "elementwise", Unit::Seconds, &H::elementwise_latency},
    {"latency", "product", Unit::Seconds, &H::product_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"latency", "host_operator", Unit::Seconds, &H::host_operator_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"factors", "matrix_rate", Unit::Share, &H::matrix_rate, Moves::Steps, Peak::Matrix, by_length, fitted},
    {"factors", "batched_matrix_rate", Unit::Share, &H::batched_matrix_rate, Moves::Steps, Peak::Matrix, !by_length, fitted},
    {"factors", "tiled_attention_rate", Unit::Share, &H::tiled_attention_rate, Moves::Steps, Peak::Matrix, by_length, fitted},
    {"factors", "decode_attention_rate", Unit::Share, &H::decode_attention_rate, Moves::Steps, Peak::Matrix, !by_length, fitted},
    {"factors", "memory_bandwidth", Unit::Share, &H::memory_bandwidth_factor, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "product_bandwidth", Unit::Share, &H::product_bandwidth, Moves::Steps, Peak::Memory, by_length, fitted},
    {"factors", "elementwise_bandwidth", Unit::Share, &H::elementwise_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "softmax_bandwidth", Unit::Share, &H::softmax_bandwidth, Moves::Steps, Peak::Memory, by_length, fitted},
    {"factors", "decode_attention_bandwidth", Unit::Share, &H::decode_attention_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "tiled_attention_bandwidth", Unit::Share, &H::tiled_attention_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "overlap", Unit::Share, &H::overlap, Moves::Steps, Peak::None, !by_length, fitted, may_be_zero},
    {"factors", "link_rate", Unit::Share, &H::link_rate, Moves::Exchanges},
    {"latency", "host_message", Unit::Seconds, &H::host_message_latency, Moves::Exchanges},
    {"latency", "host_exchange", Unit::Seconds, &H::host_exchange_latency, Moves::Exchanges},
    {"factors", "lockstep", Unit::Share, &H::lockstep, Moves::Exchanges, Peak::None, by_length},
    {"latency", "quantized_product", Unit::Seconds, &H::quantized_product_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"latency", "tiled_attention", Unit::Seconds, &H::tiled_attention_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"latency", "decode_attention", Unit::Seconds, &H::decode_attention_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"", "on_chip_read_bandwidth", Unit::BytesPerSecond, &H::on_chip_read_bandwidth},
    {"", "fp16_accumulation_flops_per_second", Unit::FlopsPerSecond, &H::fp16_accumulation_flops_per_second},
    {"factors", "quantized_product_bandwidth", Unit::Share, &H::quantized_product_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "product_overlap", Unit::Share, &H::product_overlap, Moves::Steps, Peak::None, !by_length, fitted, may_be_zero},
    {"factors", "tiled_attention_overlap", Unit::Share, &H::tiled_attention_overlap, Moves::Steps, Peak::None, !by_length, fitted, may_be_zero},
    {"latency", "expert_product", Unit::Seconds, &H::expert_product_latency, Moves::Steps, Peak::None, !by_length, fitted},
    {"factors", "expert_rate", Unit::Share, &H::expert_rate, Moves::Steps, Peak::Matrix, by_length, fitted},
    {"factors", "expert_bandwidth", Unit::Share, &H::expert_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "quantized_expert_rate", Unit::Share, &H::quantized_expert_rate, Moves::Steps, Peak::Matrix, by_length, fitted},
    {"factors", "quantized_expert_bandwidth", Unit::Share, &H::quantized_expert_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "marlin_expert_rate", Unit::Share, &H::marlin_expert_rate, Moves::Steps, Peak::Matrix, by_length, fitted},
    {"factors", "marlin_expert_bandwidth", Unit::Share, &H::marlin_expert_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "expert_combine_bandwidth", Unit::Share, &H::expert_combine_bandwidth, Moves::Steps, Peak::Memory, !by_length, fitted},
    {"factors", "weight_bandwidth", Unit::Share, &H::weight_bandwidth, Moves::Steps, Peak::Memory, by_length},
    {"factors", "int8_weight_bandwidth", Unit::Share, &H::int8_weight_bandwidth, Moves::Steps, Peak::Memory, by_length},
};
// clang-format on

}  // namespace

std::span<const Field> hardware_fields() { return fields; }

std::string Field::path() const {
  return section.empty() ? std::string(key) : std::string(section) + "." + std::string(key);
}

std::string Field::name() const {
  return std::string(key) + (section == "latency" ? "_latency" : "");
}

std::string Field::printed() const {
  const std::string text = (section == "factors" ? "factor_" : "") + name();
  switch (unit) {
    case Unit::BytesPerSecond: return text + "_bytes_per_s";
    case Unit::Bytes: return text + "_bytes";
    case Unit::Seconds: return text + "_s";
    case Unit::FlopsPerSecond:  // keys that end in their unit
    case Unit::Share: break;
  }
  return text;
}

const Sourced* Field::find(const Hardware& hw, DType dtype) const {
  const Sourced* found = nullptr;
  for_each_number(*this, hw, [&](const std::string&, DType of, const Sourced& number) {
    if (!per_dtype() || of == dtype) found = &number;
  });
  return found;
}

void Field::set(Hardware& hw, DType dtype, Sourced number) const {
  if (const auto* required = std::get_if<Sourced Hardware::*>(&member)) {
    hw.** required = std::move(number);
  } else if (const auto* single = std::get_if<std::optional<Sourced> Hardware::*>(&member)) {
    hw.** single = std::move(number);
  } else {
    (hw.*std::get<2>(member))[dtype] = std::move(number);
  }
}

}  // namespace kvcast::roofline
