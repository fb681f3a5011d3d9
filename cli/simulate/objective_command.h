/// Times partitions with a command of the user: a run on real devices, or another simulator.
#pragma once

#include <string>

#include "search/partition_search.h"

namespace kvcast::cli {

/// Runs `command` in the shell for each partition and reads the TTFT from its output: a number of
/// seconds, or the `ttft_s` of a JSON object, as kvcast run --json prints it. "{partition}" in the
/// command becomes, for example, "9728,6656", and "{parts}" becomes "9728/6656", as methods spell
/// it. Throws Error if the command contains neither, and (Fault::Run) if it takes longer than
/// `limit_s`, fails, or prints anything but a number above zero.
search::Objective command_objective(const std::string& command, double limit_s);

}  // namespace kvcast::cli
