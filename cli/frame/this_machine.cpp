#include "cli/frame/this_machine.h"

#include <cstdlib>

#include "cli/frame/mpirun_environment.h"
#include "model/base/error.h"

namespace kvcast::cli {

std::filesystem::path this_machine_file() {
  const char* const file = "kvcast/this-machine.json";
  const char* config = std::getenv("XDG_CONFIG_HOME");
  // The base directory specification ignores paths that are not absolute.
  if (config != nullptr && *config == '/') return std::filesystem::path(config) / file;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return std::filesystem::path(home) / ".config" / file;
}

std::string or_this_machine(const std::string& given, const Globals& globals) {
  if (!given.empty()) return given;
  const std::filesystem::path file = this_machine_file();
  std::error_code missing;
  if (file.empty() || !std::filesystem::exists(file, missing)) {
    throw Error(
        "--hardware is required: name a device (kvcast hardware list), or run kvcast calibrate "
        "once, which makes this machine the default");
  }
  if (rank_of_mpirun() <= 0)
    globals.note("note: without --hardware, this machine: " + file.string());
  return file.string();
}

}  // namespace kvcast::cli
