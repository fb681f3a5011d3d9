/// Whether files are still those of before.
#pragma once

#include <filesystem>
#include <string>

namespace kvcast {

/// Of a file, or of a folder's .json and .safetensors files: of their names, sizes and samples of
/// their bytes, so that gigabytes of weights take no time. One that is not there is empty.
std::string file_fingerprint(const std::filesystem::path& file_or_folder);

}  // namespace kvcast
