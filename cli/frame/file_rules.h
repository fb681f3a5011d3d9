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

using PicturesOf = std::function<std::vector<std::filesystem::path>(const std::filesystem::path&)>;

/// The flag's picture has others beside it.
void add_pictures(const CLI::Option* flag, PicturesOf pictures);

/// Of the flags that were given. Throws Error naming the flag; of a file that cannot be written as
/// AtomicFile does.
void check_files(const CLI::App& command);
/// Throws Error where a flag was given an empty text, or a list with a key twice.
void check_texts(const CLI::App& command);

}  // namespace kvcast::cli
