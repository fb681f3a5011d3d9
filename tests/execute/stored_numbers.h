/// The numbers of a safetensors file.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast {

/// All tensors by name, as N: float or double.
template <typename N = float>
std::map<std::string, std::vector<N>> stored_numbers(const std::filesystem::path& file) {
  std::map<std::string, std::vector<N>> tensors;
  for (const StoredTensor& t : read_safetensors(MappedFile::open(file))) {
    tensors[t.name].resize(t.elements());
    read_elements(t, 0, std::span(tensors[t.name]));
  }
  return tensors;
}

}  // namespace kvcast
