/// `kvcast choose keep-rate`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_choose_keep_rate(Command choose, const Globals& globals);

}  // namespace kvcast::cli
