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
#include <vector>

#include "model/weights/stored_tensor.h"

namespace kvcast {

/// The tensors in the order of their bytes. F32, F16 and BF16 are read; the format's other types
/// are given back as skipped. Throws Error naming the file, and the tensor where one is wrong:
/// headers that are no header, sizes that contradict the shape, gaps, overlaps, repeated names.
StoredTensors read_safetensors(std::shared_ptr<const MappedFile> file);

/// The checkpoint in a folder: `model.safetensors`, else the shards that
/// `model.safetensors.index.json` names, else the only *.safetensors file. Throws Error when there
/// is none, when a shard or a tensor of the index is missing, or when the index names a file
/// outside the folder.
StoredTensors read_safetensors_folder(const std::filesystem::path& folder);

struct TensorToWrite {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< outermost first; its product is data.size()
  std::span<const float> data;
};

/// A tensor whose numbers come later.
struct TensorPlan {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< outermost first
};

/// What stands before the tensors' bytes in a file of them: they follow in the given order. For
/// files too large to hold twice in memory.
std::string safetensors_header(const std::vector<TensorToWrite>& tensors);
std::string safetensors_header(const std::vector<TensorPlan>& tensors);

/// A whole F32 file, tensors in the given order, the header padded with blanks to 8 bytes.
std::string safetensors_bytes(const std::vector<TensorToWrite>& tensors);

}  // namespace kvcast
