/// The JSON header of a safetensors file, parsed without building a document: headers may have
/// 100 MB, and a document would silently keep the last of two equal keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvcast {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::array<std::uint64_t, 2> data_offsets{};
};

/// `place` names the file. Throws Error: no JSON object, a repeated key, a tensor with other
/// entries than dtype, shape and data_offsets or with values of another kind, metadata other than
/// strings.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> header,
                                                       const std::string& place);

}  // namespace kvcast
