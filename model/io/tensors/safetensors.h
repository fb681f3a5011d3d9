/// Reads and writes Hugging Face's safetensors files.
///
/// A file is a little-endian 64-bit length, a JSON header of that many bytes, and the buffer that
/// the header's `data_offsets` point into.
/// Source: huggingface/safetensors, README.md, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

/// The tensors in the order of their bytes. F64, F32, F16 and BF16 have a dtype, the format's other
/// types none. Throws Error naming the file, and the tensor where one is wrong: headers that are no
/// header, sizes that contradict the shape, gaps, overlaps, repeated names.
std::vector<StoredTensor> read_safetensors(std::shared_ptr<const MappedFile> file);

/// The checkpoint in a folder: `model.safetensors`, else the shards that
/// `model.safetensors.index.json` names, else the only *.safetensors file. Throws Error when there
/// is none, when a shard or a tensor of the index is missing, or when the index names a file
/// outside the folder.
std::vector<StoredTensor> read_safetensors_folder(const std::filesystem::path& folder);

/// The numbers to write; their type in the file may be another.
using NumberSpan = std::variant<std::span<const float>, std::span<const double>>;

struct TensorToWrite {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< outermost first
  NumberSpan data = {};              ///< row-major; all elements, or a piece of them
  DType dtype = DType::FP32;         ///< in the file: FP64, FP32, FP16 or BF16
};

/// The beginning of a file with these tensors, whose bytes follow in the given order. `data` is not
/// read: a file too large for memory is this header, then piece after piece of `safetensors_data`.
/// Throws Error for a dtype that such files do not hold.
std::string safetensors_header(const std::vector<TensorToWrite>& tensors);

/// The bytes of `tensor.data`, which starts with the tensor's element `first`. Numbers are rounded
/// to the nearest of the dtype, ties to even. Throws Error naming the tensor, the element and the
/// value when that is not finite or beyond the dtype's largest number; numbers that have the dtype
/// already are copied unchecked.
std::string safetensors_data(const TensorToWrite& tensor, std::uint64_t first = 0);

/// A whole file, tensors in the given order, the header padded with blanks to 8 bytes. Throws Error
/// as the two functions above.
std::string safetensors_bytes(const std::vector<TensorToWrite>& tensors);

}  // namespace kvcast
