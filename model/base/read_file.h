/// Reads whole files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvcast {

/// The bytes of a file, a pipe or a device. Throws Error naming the file, in words that say it
/// should be `kind` ("a WAV file"): missing, a folder, more than `most` bytes.
std::string read_file(const std::filesystem::path& path, std::string_view kind,
                      std::uint64_t most = std::uint64_t{64} << 20);

}  // namespace kvcast
