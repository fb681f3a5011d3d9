#include "cli/frame/data_folder.h"

#include <cstdlib>

#include <sys/auxv.h>

namespace kvcast::cli {
namespace {

/// Empty where it is not known.
std::filesystem::path program_folder() {
  std::error_code ec;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (ec) {  // a root without /proc: how it was called
    const auto called = getauxval(AT_EXECFN);
    if (called != 0) {
      program = std::filesystem::canonical(reinterpret_cast<const char*>(called), ec);
    }
  }
  return program.parent_path();
}

}  // namespace

std::filesystem::path data_folder(const std::string& flag) {
  if (!flag.empty()) return flag;
  const char* variable = std::getenv("KVCAST_DATA");
  if (variable != nullptr && *variable != '\0') return variable;
  std::error_code ec;
  const std::filesystem::path program = program_folder();
  if (!program.empty()) {
    const auto installed = program / KVCAST_INSTALLED_DATA_DIR;
    if (std::filesystem::is_directory(installed, ec)) return installed;
  }
  return KVCAST_SOURCE_DATA_DIR;
}

std::filesystem::path explorer_page() {
  const std::filesystem::path program = program_folder();
  const std::filesystem::path shared =
      (program / KVCAST_INSTALLED_DATA_DIR).lexically_normal().parent_path();
  std::error_code ec;
  for (const std::filesystem::path& folder : {program, shared}) {
    if (std::filesystem::is_regular_file(folder / "explorer.html", ec)) {
      return folder / "explorer.html";
    }
  }
  return {};
}

}  // namespace kvcast::cli
