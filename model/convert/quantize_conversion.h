/// Writes a checkpoint in another element type.
///
/// A GGUF file gets the types that llama.cpp gives the tensors, bit for bit as its reference
/// quantises; its metadata stays. A Hugging Face folder becomes one in bf16 or fp16.
/// Source   ggml-org/llama.cpp: src/llama-quant.cpp (without an importance matrix)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"
#include "model/convert/conversion_source.h"

namespace kvcast {

enum class QuantizedType { Q8_0, Q4_0, Q4_K_M, BF16, FP16 };
/// Throws Error with the nearest of q8_0, q4_0, q4_k_m, bf16 and fp16.
QuantizedType parse_quantized_type(std::string_view text);

struct QuantizeConversion {
  QuantizedType type = QuantizedType::Q8_0;
  bool requantizes = false;  ///< also what is quantised already
};

/// Tensors of one type that became another one.
struct RetypedTensors {
  std::string from;
  std::string to;
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
  double squared_error = 0;  ///< sum over the parameters

  double mean_squared_error() const {
    return parameters == 0 ? 0 : squared_error / static_cast<double>(parameters);
  }
};

struct QuantizeReport {
  std::vector<RetypedTensors> types;
  std::vector<std::string> copied_files;

  RetypedTensors total() const;
};

/// `on_tensor` is called before each tensor. Throws Error, and writes nothing: a file that cannot
/// be read, a type that it cannot become, numbers that the type does not reach, a file that cannot
/// be written.
QuantizeReport quantize_checkpoint(const std::filesystem::path& input,
                                   const std::filesystem::path& output,
                                   const QuantizeConversion& conversion,
                                   const Progress& on_tensor = nullptr);

}  // namespace kvcast
