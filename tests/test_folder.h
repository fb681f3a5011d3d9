/// A folder of its own for a test, gone at its end.
#pragma once

#include <filesystem>
#include <iterator>
#include <string>

#include <doctest/doctest.h>
#include <stdlib.h>

namespace kvcast {

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvcast-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  /// The path of a file in it, as a command line takes it.
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  auto num_files() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  std::filesystem::path path_;
};

}  // namespace kvcast
