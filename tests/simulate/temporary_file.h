/// A file of a test.
#pragma once

#include <filesystem>
#include <random>
#include <string>

#include "model/io/files/atomic_file.h"

namespace kvcast::simulate {

/// In a folder of its own, which goes with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("kvcast_requests_" + std::to_string(std::random_device()()))) {
    std::filesystem::create_directory(folder_);
    path = folder_ / name;
  }
  TemporaryFile(const std::string& name, const std::string& text) : TemporaryFile(name) {
    write_file(path, text);
  }
  ~TemporaryFile() { std::filesystem::remove_all(folder_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  std::filesystem::path path;

 private:
  std::filesystem::path folder_;
};

}  // namespace kvcast::simulate
