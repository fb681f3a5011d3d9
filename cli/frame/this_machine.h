/// The hardware file that `kvcast calibrate` wrote for this machine: the default of --hardware.
#pragma once

#include <filesystem>
#include <string>

#include "cli/frame/command.h"

namespace kvcast::cli {

/// $XDG_CONFIG_HOME/kvcast/this-machine.json, or ~/.config in place of XDG_CONFIG_HOME. Empty where
/// the environment names no folder.
std::filesystem::path this_machine_file();

/// `given`, or that file, which a message then names. Throws Error where neither is there.
std::string or_this_machine(const std::string& given, const Globals& globals);

}  // namespace kvcast::cli
