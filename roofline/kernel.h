/// Seconds of one kernel at one size, as tables of kernel times have it.
#pragma once

#include <cstdint>

#include "model/base/dtype.h"
#include "roofline/hardware.h"

namespace kvcast::roofline {

/// A product with weights, or fused attention over `length` tokens of each sequence.
struct Kernel {
  enum class Kind { Product, PrefillAttention, DecodeAttention };
  Kind kind = Kind::Product;
  DType dtype = DType::FP16;  ///< of all operands
  // Of products: [rows, inner] x [outputs, inner].
  std::uint64_t rows = 1;
  std::uint64_t outputs = 1;
  std::uint64_t inner = 1;
  // Of attention.
  std::uint64_t batch = 1;
  std::uint64_t num_attention_heads = 1;
  std::uint64_t num_key_value_heads = 1;
  std::uint64_t head_dim = 1;
  std::uint64_t length = 1;  ///< prefill: queries and keys, causal; decode: keys of one query
  bool operator==(const Kernel&) const = default;
};

/// FLOPs (a multiply-add as 2; of causal attention the visible half) and algorithmic bytes.
Work work(const Kernel& kernel);
/// As a calibrated estimate has it. Throws Error when the device cannot multiply the dtype.
Seconds seconds_of(const Kernel& kernel, const Hardware& hardware);

}  // namespace kvcast::roofline
