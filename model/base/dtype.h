/// Element types: their names, storage widths and the rule for which one a product runs in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/count.h"

namespace kvcast {

/// FP32 ... INT4 and FP64 are plain elements. Q8_0 ... MXFP4 are GGUF's blocks with their scales
/// inside.
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
  Q5_0,
  Q5_1,
  Q4_K,
  Q5_K,
  Q6_K,
  MXFP4,
  FP64
};

inline constexpr int num_dtypes = 17;

/// A block of `block_elements` elements occupies `block_bits` bits, scales included.
struct DTypeWidth {
  std::string_view name;
  int block_bits;
  int block_elements;
};

/// Source of the block sizes: ggml's quantisation formats (ggml-org/ggml : src/ggml-common.h).
const DTypeWidth& width(DType dtype);

inline std::string_view name(DType dtype) { return width(dtype).name; }
/// INT8 and INT4, which integer units multiply; GGUF's blocks are converted to floats first.
inline bool is_integer(DType dtype) { return dtype == DType::INT8 || dtype == DType::INT4; }
/// Bits an element occupies, scales included: 16, 4, 4.5, ...
double bits_per_element(DType dtype);
/// Exact bytes of `elements` elements; halves stay fractions until the count is evaluated.
Count bytes_of(const Count& elements, DType dtype);

std::vector<std::string> dtype_names();
/// Throws Error naming the nearest dtype.
DType parse_dtype(std::string_view text);

/// The dtype that the matrix unit multiplies in, given the two operands' dtypes: equal dtypes run
/// as they are; otherwise the narrower one is converted to the wider (weight-only quantisation
/// multiplies in the activations' dtype).
DType product_dtype(DType a, DType b);

}  // namespace kvcast
