/// What holds for the files of every command, seen before its work: an output is no input, no file
/// of the catalog and no other output, and it can be written.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvcast::cli {

using FilesOf = std::function<std::vector<std::filesystem::path>(const std::filesystem::path&)>;

struct FlagRules {
  FilesOf writes;             ///< files that the value makes a command write; none: it is no output
  bool has_keys = false;      ///< a list of KEY=VALUE, or of words, each of them once
  bool is_free_text = false;  ///< may be empty, and names no file
};
/// To set and to read; the parser's flags hold nothing of ours.
FlagRules& rules_of(const CLI::Option* flag);

/// Each picture, the CSV of its points and its script.
std::vector<std::filesystem::path> drawn(const std::vector<std::filesystem::path>& pictures);

/// Of the flags that were given. Throws Error naming the flag; of a file that cannot be written as
/// AtomicFile does.
void check_files(const CLI::App& command);
/// Throws Error where a flag was given an empty text, or a list with a key twice.
void check_texts(const CLI::App& command);

}  // namespace kvcast::cli
