/// `choose devices`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_choose_devices(Command command, const Globals& globals);

}  // namespace kvcast::cli
