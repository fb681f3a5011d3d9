/// Checks of every command's files before it works: an output is no input, no other output and no
/// file of the catalog, and it can be written.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvcast::cli {

using FilesOf = std::function<std::vector<std::filesystem::path>(const std::filesystem::path&)>;

struct FlagRules {
  FilesOf writes;             ///< the files that the command writes for a value; empty: no output
  bool has_keys = false;      ///< a list of KEY=VALUE or of words, each at most once
  bool is_free_text = false;  ///< may be empty and never names a file
  std::vector<std::string> needs;  ///< it has no effect without one of these flags
  std::vector<std::pair<std::string, std::string>> excludes;  ///< flags, and why
};
/// To set and to read: the parser's own options cannot hold them.
FlagRules& rules_of(const CLI::Option* flag);
/// At the end of a parser: the next one may have flags at the same addresses.
void forget_rules();

/// Each picture, the CSV of its points and its script.
std::vector<std::filesystem::path> drawn(const std::vector<std::filesystem::path>& pictures);

/// Checks the flags that were given. Throws Error naming the flag, or AtomicFile's for a file that
/// cannot be written.
void check_files(const CLI::App& command);
/// Throws Error where a flag was given an empty text, or a list with a key twice, and where another
/// flag that it needs, unless its value is the default, is missing or one that it excludes is
/// there.
void check_texts(const CLI::App& command);

}  // namespace kvcast::cli
