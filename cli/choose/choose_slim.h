/// `kvcast choose slim`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_choose_slim(Command choose, const Globals& globals);

}  // namespace kvcast::cli
