#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "tests/house/source_tree.h"

namespace kvcast::house {
namespace {

/// The first #include of a file, as it is written; empty if it has none.
std::string first_include(const std::filesystem::path& file) {
  for (const std::string& line : read_lines(file)) {
    if (line.starts_with("#include ")) return line.substr(9);
  }
  return "";
}

// So each header compiles alone, and no build has to try it again.
TEST_CASE("house: a source includes its own header before all others") {
  std::size_t pairs = 0;
  for (const std::filesystem::path& source : source_files()) {
    std::filesystem::path header = source;
    header.replace_extension(".h");
    if (source.extension() != ".cpp") continue;
    if (!std::filesystem::exists(std::filesystem::path(KVCAST_SOURCE_DIR) / header)) continue;
    ++pairs;
    CHECK_MESSAGE(first_include(source) == '"' + header.string() + '"', source.string());
  }
  CHECK(pairs > 100);  // else we looked in the wrong place
}

}  // namespace
}  // namespace kvcast::house
