/// `kvcast validate quality`.
#pragma once

#include "cli/frame/command.h"

namespace kvcast::cli {

void add_validate_quality(CLI::App& validate, const Globals& globals);

}  // namespace kvcast::cli
