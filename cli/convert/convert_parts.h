/// Subcommands of `kvcast convert` with a file of their own.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_convert_kvp(Command convert, const Globals& globals);
void add_convert_prune(Command convert, const Globals& globals);
void add_convert_quantize(Command convert, const Globals& globals);
void add_convert_slim(Command convert, const Globals& globals);

}  // namespace kvcast::cli
