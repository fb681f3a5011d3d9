/// Subcommands of `kvcast convert` with a file of their own.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_convert_kvp(CLI::App& convert, const Globals& globals);
void add_convert_prune(CLI::App& convert, const Globals& globals);
void add_convert_slim(CLI::App& convert, const Globals& globals);

}  // namespace kvcast::cli
