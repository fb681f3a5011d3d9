/// A tensor as a checkpoint file holds it: name, element type, shape and its bytes in the mapped
/// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"

namespace kvcast {

class MappedFile;
struct PackedWeight;

/// Shape outermost dimension first, as PyTorch prints it, row-major. `bytes` lie in `file`, which
/// lives as long as any tensor of it.
struct StoredTensor {
  std::string name;
  /// Empty when kvcast cannot read the type, which is an error only when the tensor is needed.
  std::optional<DType> dtype = DType::FP32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> file;
  std::string type{};  ///< as its format spells it: "I64", "Q3_K"
  /// A weight that other tensors hold together, of which `bytes` are the codes; null: none.
  std::shared_ptr<const PackedWeight> packed = nullptr;

  std::uint64_t elements() const;
  /// "FILE: tensor NAME", for errors.
  std::string place() const;
  /// Throws Error naming the tensor and its type when kvcast cannot read it.
  DType readable_dtype() const;
};

/// `text`, a name from a file, cut to what fits an error line.
std::string shortened(std::string_view text);

/// Elements first ... first + out.size() - 1 as fp32, FP64 rounded to it. Quantised blocks (Q8_0
/// ... MXFP4) need `first` and the size to be multiples of their block; whole rows always are.
/// Throws Error on a type that kvcast cannot read, and naming the element on a NaN, an infinity and
/// FP64 numbers that fp32 does not reach. Source   ggml's formats (ggml-org/ggml:
/// src/ggml-common.h, dequantize_row_* in ggml-quants.c)
void read_elements(const StoredTensor& tensor, std::uint64_t first, std::span<float> out);
/// The same as fp64: FP64 exactly, the other types' fp32 values.
void read_elements(const StoredTensor& tensor, std::uint64_t first, std::span<double> out);
/// A block of a row as read_blocks has it; the last one of a row may hold fewer numbers.
struct RowBlock {
  std::uint64_t elements;
  std::uint64_t bytes;
};
/// GGUF's blocks and plain numbers as they are; of other checkpoints' blocks those of one row:
///   FP8        128 numbers: fp32 scale, a byte for each number
///   INT4_G...  a word whose lowest 13 bits are the zero, and the others a scale's; then, for each
///              32 numbers, 16 bytes as in Q4_0
RowBlock row_block(DType dtype);
/// Bytes of a row of so many numbers in such blocks.
std::uint64_t row_bytes(DType dtype, std::uint64_t elements);
/// The blocks of one row's elements from `first` on; of plain numbers and GGUF's blocks also of
/// several rows. Throws Error as above.
void read_blocks(const StoredTensor& tensor, std::uint64_t first, std::span<std::byte> out);

}  // namespace kvcast
