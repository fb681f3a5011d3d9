/// Measuring into a CSV from a command: a progress line, Ctrl-C, and what is said then.
#pragma once

#include <functional>

#include "cli/command.h"
#include "reports/measured_rows.h"

namespace kvcast::cli {

/// Calls `measure` with a progress line and a stop on Ctrl-C set in `options`; interrupted, it says
/// how to go on and ends the program.
reports::MeasuredRows run_measured_rows(const Globals& globals,
                                        reports::MeasuredRowsOptions& options,
                                        const std::function<reports::MeasuredRows()>& measure);

}  // namespace kvcast::cli
