/// From numbers to the blocks of GGUF files.
#pragma once

#include <cstddef>
#include <span>

#include "model/base/dtype.h"

namespace kvcast {

/// FP32, FP16, BF16, Q8_0, Q4_0, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K.
bool can_write_blocks(DType dtype);

/// The blocks of `numbers`, which are whole blocks and finite: bit for bit those of ggml's
/// reference. Throws Error for a number or a scale beyond the 16 bits that it gets.
/// Source   ggml-org/ggml: src/ggml-quants.c, quantize_row_*_ref, make_qx_quants, make_qkx2_quants
void write_blocks(DType dtype, std::span<const float> numbers, std::span<std::byte> blocks);

}  // namespace kvcast
