#include "cli/frame/data_folder.h"

#include <cstdlib>

namespace kvcast::cli {

std::filesystem::path data_folder(const std::string& flag) {
  if (!flag.empty()) return flag;
  const char* variable = std::getenv("KVCAST_DATA");
  if (variable != nullptr && *variable != '\0') return variable;
  std::error_code ec;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (!ec) {
    const auto installed = program.parent_path() / KVCAST_INSTALLED_DATA_DIR;
    if (std::filesystem::is_directory(installed, ec)) return installed;
  }
  return KVCAST_SOURCE_DATA_DIR;
}

}  // namespace kvcast::cli
