/// Reads and writes GGUF files, llama.cpp's checkpoints: metadata by key, and tensors.
///
/// Versions 2 and 3, little-endian.
/// Source: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/tensors/gguf_metadata.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

struct GgufFile {
  std::shared_ptr<const MappedFile> file;
  GgufMetadata metadata;
  /// In the order of their bytes; those of ggml types that kvcast does not read have no dtype.
  std::vector<StoredTensor> tensors;

  const StoredTensor* find(std::string_view name) const;  ///< null when absent
  bool has(std::string_view name) const { return find(name) != nullptr; }
};

/// Throws Error naming the file, and the key or tensor: other formats, versions and byte orders;
/// counts, lengths and offsets that leave the file; repeated names; tensors that overlap or are not
/// aligned.
GgufFile read_gguf(std::shared_ptr<const MappedFile> file);

/// "F32", "Q4_K". Throws Error for a dtype without a type of GGUF files.
std::string_view ggml_type_name(DType dtype);

/// A tensor to write, with the name of its type; shape outermost first.
struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::string type;
  std::uint64_t bytes = 0;
};
/// The beginning of a file with metadata `values`, keys and all as files hold them, and these
/// tensors; their bytes follow in the given order, each filled up to the alignment. Throws Error
/// naming a tensor of an unknown type.
std::string gguf_header(const std::vector<std::string>& values,
                        const std::vector<GgufTensor>& tensors, std::uint64_t alignment);
/// A key of the metadata with a number as its value.
std::string gguf_value(std::string_view key, std::uint32_t number);
/// Of a file: general.alignment, or 32.
std::uint64_t gguf_alignment(const GgufMetadata& metadata);

}  // namespace kvcast
