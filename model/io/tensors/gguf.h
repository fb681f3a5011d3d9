/// Reads GGUF files, llama.cpp's checkpoints: metadata by key, and tensors.
///
/// Versions 2 and 3, little-endian.
/// Source: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <memory>
#include <string_view>

#include "model/io/tensors/gguf_metadata.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

struct GgufFile {
  std::shared_ptr<const MappedFile> file;
  GgufMetadata metadata;
  /// In the order of the file. Skipped: tensors of ggml types that kvcast does not read.
  StoredTensors stored;

  const StoredTensor* find(std::string_view name) const;  ///< null when absent or skipped
  bool has(std::string_view name) const;                  ///< skipped tensors too
};

/// Throws Error naming the file, and the key or tensor: other formats, versions and byte orders;
/// counts, lengths and offsets that leave the file; repeated names; tensors that overlap or are not
/// aligned.
GgufFile read_gguf(std::shared_ptr<const MappedFile> file);

}  // namespace kvcast
