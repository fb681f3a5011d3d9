#include "model/base/dtype.h"

#include <array>

#include "model/base/error.h"

namespace kvcast {
namespace {

constexpr std::array<DTypeWidth, num_dtypes> widths{{
    {"fp32", 32, 1},         {"tf32", 32, 1},
    {"fp16", 16, 1},         {"bf16", 16, 1},
    {"fp8", 8, 1},           {"int8", 8, 1},
    {"int4", 4, 1},          {"q8_0", 272, 32},
    {"q4_0", 144, 32},       {"q4_1", 160, 32},
    {"q4_k", 1152, 256},     {"q6_k", 1680, 256},
    {"fp64", 64, 1},         {"q5_0", 176, 32},
    {"q5_1", 192, 32},       {"q2_k", 672, 256},
    {"q3_k", 880, 256},      {"q5_k", 1408, 256},
    {"iq1_s", 400, 256},     {"iq1_m", 448, 256},
    {"iq2_xxs", 528, 256},   {"iq2_xs", 592, 256},
    {"iq2_s", 656, 256},     {"iq3_xxs", 784, 256},
    {"iq3_s", 880, 256},     {"iq4_nl", 144, 32},
    {"iq4_xs", 1088, 256},   {"tq1_0", 432, 256},
    {"tq2_0", 528, 256},     {"mxfp4", 136, 32},
    {"nvfp4", 72, 16},       {"fp8_b128", 128 * 128 * 8 + 32, 128 * 128},
    {"int4_g32", 148, 32},   {"int4_g64", 276, 64},
    {"int4_g128", 532, 128},
}};

}  // namespace

const DTypeWidth& width(DType dtype) { return widths[static_cast<std::size_t>(dtype)]; }

double bits_per_element(DType dtype) {
  return static_cast<double>(width(dtype).block_bits) / width(dtype).block_elements;
}

Count bytes_of(const Count& elements, DType dtype) {
  return elements.scaled(width(dtype).block_bits, std::int64_t{8} * width(dtype).block_elements);
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DTypeWidth& w : widths) names.emplace_back(w.name);
  return names;
}

std::optional<DType> pytorch_dtype(std::string_view text) {
  if (text.starts_with("torch.")) text.remove_prefix(6);
  if (text == "bfloat16") return DType::BF16;
  if (text == "float16" || text == "half") return DType::FP16;
  if (text == "float32" || text == "float") return DType::FP32;
  return {};
}

DType parse_dtype(std::string_view text) {
  if (const std::optional<DType> dtype = pytorch_dtype(text)) return *dtype;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i].name == text) return static_cast<DType>(i);
  }
  throw unknown_name("dtype", text, dtype_names());
}

DType product_dtype(DType a, DType b) {
  if (a == DType::FP8_B128) a = DType::FP8;
  if (b == DType::FP8_B128) b = DType::FP8;
  if (a == b) return a;
  return bits_per_element(a) >= bits_per_element(b) ? a : b;
}

}  // namespace kvcast
