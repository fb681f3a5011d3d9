/// Reads GGUF files, llama.cpp's checkpoints: metadata by key, and tensors.
///
/// Versions 2 and 3, little-endian.
/// Source: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <memory>
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

}  // namespace kvcast
