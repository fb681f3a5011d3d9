#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/house/source_tree.h"

// The file lists are written by hand, so a file, and worse a test, can be forgotten: it would never
// be compiled, and nothing would fail.

namespace kvcast::house {
namespace {

/// Whether a CMakeLists.txt with these lines names the file, as a word of its own and outside
/// comments.
bool names(const std::vector<std::string>& cmake_lines, const std::string& file) {
  for (const std::string& line : cmake_lines) {
    std::string code = line.substr(0, line.find('#'));
    for (char& c : code) {
      if (c == '(' || c == ')') c = ' ';
    }
    std::istringstream words(code);
    for (std::string word; words >> word;) {
      if (word == file) return true;
    }
  }
  return false;
}

/// Whether the nearest CMakeLists.txt above the file names it. Files of tests/<folder>/ are written
/// there as kvcast_test takes them, relative to tests/<folder>/; headers of tests are not listed.
bool is_listed(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  fs::path folder = file.parent_path();
  while (!fs::exists(fs::path(KVCAST_SOURCE_DIR) / folder / "CMakeLists.txt")) {
    if (folder.empty()) return false;
    folder = folder.parent_path();
  }
  const auto lines = read_lines(folder / "CMakeLists.txt");
  const fs::path relative = file.lexically_relative(folder);
  if (folder == "tests" && relative.has_parent_path()) {
    return file.extension() == ".h" || names(lines, relative.lexically_relative(*relative.begin()));
  }
  return names(lines, relative);
}

TEST_CASE("house: every source file is in its folder's CMakeLists.txt") {
  const auto files = source_files();
  REQUIRE(files.size() > 5);  // else we looked in the wrong place
  for (const auto& file : files) {
    CHECK_MESSAGE(is_listed(file), file.string(), " is in no CMakeLists.txt: nothing compiles it");
  }
}

TEST_CASE("house: the list check sees a forgotten file") {
  const std::vector<std::string> lines = {"kvcast_library(model", "  SOURCES graph.cpp # op.cpp",
                                          "  HEADERS methods/slim.h)"};
  CHECK(names(lines, "graph.cpp"));
  CHECK(names(lines, "methods/slim.h"));
  CHECK_FALSE(names(lines, "op.cpp"));
  CHECK_FALSE(names(lines, "slim.h"));
  CHECK_FALSE(names(lines, "raph.cpp"));
}

}  // namespace
}  // namespace kvcast::house
