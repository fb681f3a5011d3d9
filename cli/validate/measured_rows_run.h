/// Measuring into a CSV from a command: a progress line, Ctrl-C, and what is said then.
#pragma once

#include <functional>

#include "cli/frame/command.h"
#include "measure/measured_rows.h"

namespace kvcast::cli {

/// Calls `measure` with a progress line and a stop on Ctrl-C set in `options`; interrupted, it says
/// how to go on and ends the program.
measure::MeasuredRows run_measured_rows(const Globals& globals,
                                        measure::MeasuredRowsOptions& options,
                                        const std::function<measure::MeasuredRows()>& measure);

}  // namespace kvcast::cli
