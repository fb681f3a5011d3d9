/// `kvcast validate --measure`.
#pragma once

#include "cli/validate/validate_measurements.h"

namespace kvcast::cli {

void validate_measure(const ValidateOptions& o, const Globals& globals);

}  // namespace kvcast::cli
