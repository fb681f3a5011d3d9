#include "model/io/files/file_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <system_error>
#include <vector>

#include "model/io/files/fnv_hash.h"

namespace kvcast {
namespace {

/// Adds size and evenly spread samples, so that large files are not read twice.
void add_file(FnvHash& hash, const std::filesystem::path& file) {
  constexpr std::uint64_t samples = 64;
  constexpr std::uint64_t sample_bytes = 4096;
  const std::string name = file.filename().string();
  hash.add(name);
  std::error_code ec;
  const std::uint64_t found = std::filesystem::file_size(file, ec);
  const std::uint64_t size = ec ? 0 : found;
  hash.add(&size, sizeof size);
  std::ifstream in(file, std::ios::binary);
  std::vector<char> bytes(sample_bytes);
  const std::uint64_t step = std::max(sample_bytes, size / samples);
  for (std::uint64_t first = 0; first < size; first += step) {
    in.seekg(static_cast<std::streamoff>(first));
    in.read(bytes.data(), static_cast<std::streamsize>(sample_bytes));
    hash.add(bytes.data(), static_cast<std::size_t>(in.gcount()));
    in.clear();
  }
}

}  // namespace

std::string file_fingerprint(const std::filesystem::path& file_or_folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (fs::is_directory(file_or_folder)) {
    for (const auto& entry : fs::directory_iterator(file_or_folder)) {
      const std::string ending = entry.path().extension().string();
      if (ending == ".json" || ending == ".safetensors") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(file_or_folder);
  }
  FnvHash hash;
  for (const fs::path& file : files) add_file(hash, file);
  return hash.text();
}

}  // namespace kvcast
