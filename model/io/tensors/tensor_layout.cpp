#include "model/io/tensors/tensor_layout.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"

namespace kvcast {

std::uint64_t bytes_of(const std::vector<std::uint64_t>& shape, const ElementType& type,
                       const std::string& place) {
  // A zero anywhere makes the tensor empty, however large the other extents claim to be.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_elements != 0) {
    throw Error(place, "rows of " + std::to_string(row) + " elements",
                "multiples of the " + std::to_string(type.block_elements) + " of a " +
                    std::string(type.name) + " block");
  }
  std::uint64_t bits = row / type.block_elements;
  bool overflow = __builtin_mul_overflow(bits, type.block_bits, &bits);
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    overflow = __builtin_mul_overflow(bits, shape[i], &bits) || overflow;
  }
  if (overflow) throw Error(place, "a size above 2^64 bits", "a shape that fits the file");
  if (bits % 8 != 0) throw Error(place, std::to_string(bits) + " bits", "a whole number of bytes");
  return bits / 8;
}

std::vector<StoredTensor> lay_out(std::vector<TensorEntry> entries, std::span<const std::byte> data,
                                  Gaps gaps, const std::shared_ptr<const MappedFile>& file) {
  const auto place_of = [&](const TensorEntry& entry) {
    return file->path() + ": tensor " + shortened(entry.name);
  };
  for (const TensorEntry& entry : entries) {
    if (entry.begin <= data.size() && entry.bytes <= data.size() - entry.begin) continue;
    throw Error(place_of(entry),
                std::to_string(entry.bytes) + " bytes from byte " + std::to_string(entry.begin),
                "a place in the file's " + std::to_string(data.size()) + " bytes of data");
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.bytes) < std::tie(b.begin, b.bytes);
  });
  std::vector<StoredTensor> tensors;
  std::uint64_t end = 0;  // of the tensors so far
  std::string last;       // the one that ends there
  for (TensorEntry& entry : entries) {
    const bool may_be_inside = entry.bytes == 0 && gaps == Gaps::Allowed;
    if (entry.begin < end && !may_be_inside) {
      throw Error(place_of(entry), "bytes that tensor " + shortened(last) + " has too",
                  "bytes of its own");
    }
    if (entry.begin > end && gaps == Gaps::Refused) {
      throw Error(place_of(entry), "byte " + std::to_string(entry.begin) + " as its first",
                  "byte " + std::to_string(end) + ", where the tensor before it ends");
    }
    if (entry.begin + entry.bytes >= end) last = entry.name;
    end = std::max(end, entry.begin + entry.bytes);
    tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                       data.subspan(entry.begin, entry.bytes), file, std::move(entry.type)});
  }
  if (end != data.size() && gaps == Gaps::Refused) {
    throw Error(file->path(), std::to_string(data.size()) + " bytes after the header",
                std::to_string(end) + ", where the last tensor ends");
  }
  return tensors;
}

}  // namespace kvcast
