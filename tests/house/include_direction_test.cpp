#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "tests/house/source_tree.h"

// With one include root, CMake builds an include against the arrow without a word, so this test
// reads the #include lines.

namespace kvcast::house {
namespace {

/// Position of a folder on the arrow; nothing for a name that is no folder of ours.
std::optional<std::size_t> rank(std::string_view folder) {
  const auto found = std::find(kFolders.begin(), kFolders.end(), folder);
  if (found == kFolders.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kFolders.begin());
}

/// What is wrong with one line of a file in `folder`; empty if nothing.
std::string complaint(std::string_view folder, std::string_view line) {
  const auto skip_blanks = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  const auto skip = [&line](std::string_view prefix) {
    const bool starts = line.starts_with(prefix);
    if (starts) line.remove_prefix(prefix.size());
    return starts;
  };
  skip_blanks();
  if (!skip("#")) return "";
  skip_blanks();
  if (!skip("include")) return "";
  skip_blanks();
  const bool quoted = line.starts_with('"');
  if (!quoted && !line.starts_with('<')) return "not an include we can read";
  const std::string_view path = line.substr(1, line.find(quoted ? '"' : '>', 1) - 1);

  const std::size_t slash = path.find('/');
  const std::string_view target = path.substr(0, slash);
  const bool ours = slash != std::string_view::npos && rank(target);
  if (!ours) return quoted ? "quoted, but not spelled from the root (\"roofline/cost.h\")" : "";
  if (!quoted) return "ours, so it is written in quotes";
  if (folder == "bench" && target == "tests") return "bench may not use tests";
  if (rank(target) > rank(folder)) {
    return std::string(folder) + " may not use " + std::string(target) + ", which comes after it";
  }
  return "";
}

TEST_CASE("house: no include points up the arrow") {
  const auto files = source_files();
  REQUIRE(files.size() > 5);  // else we looked in the wrong place
  for (const auto& file : files) {
    const std::string folder = file.begin()->string();
    std::size_t line_number = 0;
    for (const std::string& line : read_lines(file)) {
      ++line_number;
      const std::string wrong = complaint(folder, line);
      CHECK_MESSAGE(wrong.empty(), file.string(), ":", line_number, ": ", line, ": ", wrong);
    }
  }
}

TEST_CASE("house: the include check sees an include against the arrow") {
  CHECK(complaint("model", R"(#include "roofline/cost.h")") != "");
  CHECK(complaint("simulate", R"(  #  include "search/partition.h" // why not)") != "");
  CHECK(complaint("reports", R"(#include "tests/house/source_tree.h")") != "");
  CHECK(complaint("bench", R"(#include "tests/house/source_tree.h")") != "");
  CHECK(complaint("roofline", R"(#include <cli/progress.h>)") != "");
  CHECK(complaint("roofline", R"(#include "cost.h")") != "");
  CHECK(complaint("roofline", R"(#include "../model/units.h")") != "");

  CHECK(complaint("roofline", R"(#include "model/methods/slim.h")") == "");
  CHECK(complaint("model", R"(#include "model/base/units.h")") == "");
  CHECK(complaint("tests", R"(#include "cli/progress.h")") == "");
  CHECK(complaint("model", R"(#include <boost/graph/adjacency_list.hpp>)") == "");
  CHECK(complaint("model", R"(#include <vector>)") == "");
  CHECK(complaint("model", "") == "");
  CHECK(complaint("model", "#pragma once") == "");
  CHECK(complaint("model", R"(// #include "roofline/cost.h" would be wrong here)") == "");
}

/// Groups of files that share a stem and are not a header and its source side by side.
std::vector<std::string> shared_stems(const std::vector<std::filesystem::path>& files) {
  std::map<std::string, std::filesystem::path> first_with_stem;
  std::vector<std::string> shared;
  for (const auto& file : files) {
    const std::filesystem::path without_extension = file.parent_path() / file.stem();
    const auto [entry, is_new] = first_with_stem.emplace(file.stem(), without_extension);
    if (!is_new && entry->second != without_extension) {
      shared.push_back(entry->second.string() + " and " + without_extension.string());
    }
  }
  return shared;
}

TEST_CASE("house: a stem names one header and source in the whole project") {
  for (const std::string& pair : shared_stems(source_files())) {
    FAIL_CHECK(pair << " share a stem: rename one, so that a file can be named without its path");
  }
}

TEST_CASE("house: the stem check sees a stem used twice") {
  CHECK(shared_stems({"model/cost.h", "roofline/cost.cpp"}).size() == 1);
  CHECK(shared_stems({"model/cost.h", "model/methods/cost.h"}).size() == 1);
  CHECK(shared_stems({"roofline/cost.cpp", "roofline/cost.h", "model/op.h"}).empty());
}

/// Each room (a folder with sources) and the rooms that its files include.
using Rooms = std::map<std::string, std::set<std::string>>;

Rooms rooms_of(const std::vector<std::filesystem::path>& files) {
  Rooms rooms;
  for (const auto& file : files) {
    const std::string room = file.parent_path().string();
    for (const std::string& line : read_lines(file)) {
      if (!line.starts_with("#include \"")) continue;
      const std::string path = line.substr(10, line.find('"', 10) - 10);
      rooms[room].insert(std::filesystem::path(path).parent_path().string());
    }
    rooms[room].erase(room);
  }
  return rooms;
}

/// Rooms that are left when those that use none of the others are taken away again and again: empty
/// when no room uses, by whatever way, one that uses it.
std::set<std::string> in_cycles(Rooms rooms) {
  for (bool found = true; found;) {
    found = std::erase_if(rooms, [&rooms](const auto& room) {
              return std::none_of(room.second.begin(), room.second.end(),
                                  [&](const std::string& used) { return rooms.contains(used); });
            }) > 0;
  }
  std::set<std::string> left;
  for (const auto& [room, used] : rooms) left.insert(room);
  return left;
}

TEST_CASE("house: no two rooms include each other, directly or through others") {
  const Rooms rooms = rooms_of(source_files());
  CHECK(rooms.size() > 20);  // else we looked in the wrong place
  std::string cycles;
  for (const std::string& room : in_cycles(rooms)) cycles += room + " ";
  CHECK(cycles == "");
}

TEST_CASE("house: the room check sees a cycle through a third room") {
  CHECK(in_cycles({{"a", {"b"}}, {"b", {"c"}}, {"c", {"a"}}, {"d", {"a"}}, {"e", {}}}) ==
        std::set<std::string>{"a", "b", "c", "d"});
  CHECK(in_cycles({{"a", {"b", "e"}}, {"b", {"e"}}, {"e", {"boost"}}}).empty());
}

}  // namespace
}  // namespace kvcast::house
