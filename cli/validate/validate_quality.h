/// `kvcast validate quality`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_validate_quality(Command validate, const Globals& globals);

}  // namespace kvcast::cli
