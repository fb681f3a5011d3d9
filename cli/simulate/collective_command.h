/// `kvcast simulate collective`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_simulate_collective(Command command, const Globals& globals);

}  // namespace kvcast::cli
