/// `kvcast validate kvp`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_validate_kvp(Command validate, const Globals& globals);

}  // namespace kvcast::cli
