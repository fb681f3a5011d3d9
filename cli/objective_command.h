/// Partitions timed by a command of the user's: a run on real devices, or another simulator.
#pragma once

#include <string>

#include "search/partition_search.h"

namespace kvcast::cli {

/// Runs `command` through the shell for each partition, "{partition}" in it replaced by
/// "9728,6656", and reads from its output the one number that it prints: seconds to the first
/// token. Throws Error when the command has no such place, and (Fault::Run) when it takes longer
/// than `limit_s`, fails, or prints anything but a number above zero.
search::Objective command_objective(const std::string& command, double limit_s);

}  // namespace kvcast::cli
