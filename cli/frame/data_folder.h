/// Where models, hardware and published tables are.
#pragma once

#include <filesystem>
#include <string>

namespace kvcast::cli {

/// `flag`: of --data; empty: KVCAST_DATA, else beside the program, else the sources'.
std::filesystem::path data_folder(const std::string& flag);
/// The page of `kvcast explore`: beside the program, or beside an installed program's data. Empty
/// where there is none.
std::filesystem::path explorer_page();

}  // namespace kvcast::cli
