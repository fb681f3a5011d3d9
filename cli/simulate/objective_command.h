/// Partitions timed by a command of the user's: a run on real devices, or another simulator.
#pragma once

#include <string>

#include "search/partition_search.h"

namespace kvcast::cli {

/// Runs `command` through the shell for each partition, "{partition}" in it replaced by
/// "9728,6656" and "{parts}" by "9728/6656", as methods have it, and reads from its output the
/// seconds to the first token: one number, or the `ttft_s` of a JSON object, as kvcast run --json
/// prints it. Throws Error when the command has no such place, and (Fault::Run) when it takes
/// longer than `limit_s`, fails, or prints anything but a number above zero.
search::Objective command_objective(const std::string& command, double limit_s);

}  // namespace kvcast::cli
