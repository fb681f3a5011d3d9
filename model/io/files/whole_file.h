/// Files that are held in memory as a whole.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvcast {

/// All bytes of a file, a pipe or a device. `place` stands for the file in errors, `expected` is
/// what it should be: "a CSV file". Throws Error when it cannot be read or has more than 64 MiB.
std::string read_whole_file(const std::filesystem::path& path, const std::string& place,
                            std::string_view expected);

}  // namespace kvcast
