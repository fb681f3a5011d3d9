/// Where models, hardware and published tables are.
#pragma once

#include <filesystem>
#include <string>

namespace kvcast::cli {

/// `flag`: of --data; empty: KVCAST_DATA, else beside the program, else the sources'.
std::filesystem::path data_folder(const std::string& flag);

}  // namespace kvcast::cli
