/// `kvcast simulate serving`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_simulate_serving(Command command, const Globals& globals);

}  // namespace kvcast::cli
