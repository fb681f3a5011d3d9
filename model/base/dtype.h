/// Element types: their names, storage widths and the rule for which one a product runs in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/count.h"

namespace kvcast {

/// FP32 ... INT4 and FP64 are plain elements. Q8_0 ... TQ2_0 are GGUF's blocks with their scales
/// inside, the others blocks of other checkpoints: FP8_B128 with a scale for each 128x128,
/// INT4_G128 with a scale and a zero for each 128.
enum class DType {
  FP32,
  TF32,
  FP16,
  BF16,
  FP8,
  INT8,
  INT4,
  Q8_0,
  Q4_0,
  Q4_1,
  Q4_K,
  Q6_K,
  FP64,
  Q5_0,
  Q5_1,
  Q2_K,
  Q3_K,
  Q5_K,
  IQ1_S,
  IQ1_M,
  IQ2_XXS,
  IQ2_XS,
  IQ2_S,
  IQ3_XXS,
  IQ3_S,
  IQ4_NL,
  IQ4_XS,
  TQ1_0,
  TQ2_0,
  MXFP4,
  NVFP4,
  FP8_B128,
  INT4_G32,
  INT4_G64,
  INT4_G128
};

inline constexpr int num_dtypes = 35;

/// A block of `block_elements` elements occupies `block_bits` bits, scales included.
struct DTypeWidth {
  std::string_view name;
  int block_bits;
  int block_elements;
};

/// Sources of the block sizes: ggml's quantisation formats (ggml-org/ggml : src/ggml-common.h);
/// MXFP4: OCP Microscaling Formats 1.0, 8 bits of scale for 32; NVFP4: NVIDIA, an e4m3 scale for
/// 16; FP8_B128: DeepSeek-V3's weight_scale_inv, fp32 (a block that a matrix fills in part counts
/// as that part of its scale: 1e-6 of the model); INT4_G: AutoAWQ and GPTQ, a 16-bit scale and a
/// 4-bit zero.
const DTypeWidth& width(DType dtype);

inline std::string_view name(DType dtype) { return width(dtype).name; }
/// INT8 and INT4, which integer units multiply; GGUF's blocks are converted to floats first.
inline bool is_integer(DType dtype) { return dtype == DType::INT8 || dtype == DType::INT4; }
/// Bits an element occupies, scales included: 16, 4, 4.5, ...
double bits_per_element(DType dtype);
/// Exact bytes of `elements` elements; halves stay fractions until the count is evaluated.
Count bytes_of(const Count& elements, DType dtype);

std::vector<std::string> dtype_names();
/// "bfloat16", "torch.float16", ...: PyTorch's names of floats.
std::optional<DType> pytorch_dtype(std::string_view text);
/// A name of dtype_names() or PyTorch's. Throws Error naming the nearest dtype.
DType parse_dtype(std::string_view text);

/// The dtype that the matrix unit multiplies in, given the two operands' dtypes: equal dtypes run
/// as they are; otherwise the narrower one is converted to the wider (weight-only quantisation
/// multiplies in the activations' dtype). FP8 in blocks is FP8.
DType product_dtype(DType a, DType b);

}  // namespace kvcast
