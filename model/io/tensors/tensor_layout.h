/// From what a checkpoint's header says of its tensors to tensors whose bytes are known to be
/// theirs: the part of reading that safetensors and GGUF files share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

/// An element type of a format. Bits, because some types are narrower than a byte.
struct ElementType {
  std::string_view name;
  std::uint64_t block_bits;
  std::optional<DType> dtype = {};  ///< empty: known, but not read
  std::uint64_t block_elements = 1;
};

/// A tensor as a header describes it.
struct TensorEntry {
  std::string name;
  std::vector<std::uint64_t> shape;  ///< outermost first
  std::string type;                  ///< as the format spells it
  std::optional<DType> dtype;
  std::uint64_t begin = 0;  ///< byte of the data
  std::uint64_t bytes = 0;  ///< 0 for types of unknown size
};

/// Throws Error beginning with `place` when a row is no whole number of blocks or the size does not
/// fit 64 bits.
std::uint64_t bytes_of(const std::vector<std::uint64_t>& shape, const ElementType& type,
                       const std::string& place);

/// Whether bytes of the data may belong to no tensor.
enum class Gaps { Allowed, Refused };

/// The tensors in the order of their bytes in `data`, a part of `file`. Throws Error naming the
/// file and the tensor: bytes outside the data, bytes that two tensors share, and bytes of no
/// tensor when gaps are refused.
std::vector<StoredTensor> lay_out(std::vector<TensorEntry> entries, std::span<const std::byte> data,
                                  Gaps gaps, const std::shared_ptr<const MappedFile>& file);

}  // namespace kvcast
