/// The program as a function, for `main` and for programs that run commands inside themselves.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace kvcast::cli {

/// Runs a command line, without the program's name. Throws Error, also for a command line that is
/// none, and Interrupted. Several threads may call it at once; see capture.h for where it prints.
void run_program(const std::vector<std::string>& words);

/// What stands behind a flag on the command line.
enum class Takes { Nothing, Value, Values };

/// The flags of every command that does something: {"simulate prefill": {"--devices": ...}}.
std::map<std::string, std::map<std::string, Takes>> flags_of_commands();

}  // namespace kvcast::cli
