#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// What the house tests read: the project's C++ files, as they lie in the source tree.
namespace kvcast::house {

/// The folders with code, in the order of the arrow: each may use itself and those before it.
inline constexpr std::array<std::string_view, 10> kFolders = {
    "model",   "roofline", "simulate", "search", "measure",
    "reports", "cli",      "python",   "tests",  "bench"};

/// The paths of all .h and .cpp files in kFolders, relative to the project root, sorted.
/// Folders that do not exist yet contribute nothing.
inline std::vector<std::filesystem::path> source_files() {
  namespace fs = std::filesystem;
  const fs::path root = KVCAST_SOURCE_DIR;
  std::vector<fs::path> files;
  for (const std::string_view folder : kFolders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".h" || path.extension() == ".cpp") {
        files.push_back(path.lexically_relative(root));
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The lines of a file named relative to the project root.
inline std::vector<std::string> read_lines(const std::filesystem::path& file) {
  std::ifstream stream(std::filesystem::path(KVCAST_SOURCE_DIR) / file);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace kvcast::house
