/// Subcommands of `kvcast choose`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_choose_devices(Command choose, const Globals& globals);
void add_choose_serving(Command command, const Globals& globals);
void add_choose_frontier(Command choose, const Globals& globals);
void add_choose_keep_rate(Command choose, const Globals& globals);
void add_choose_mlkv(Command choose, const Globals& globals);
void add_choose_slim(Command choose, const Globals& globals);

}  // namespace kvcast::cli
