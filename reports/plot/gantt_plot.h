/// A simulated run as a chart of bars over time.
#pragma once

#include <string>

#include "reports/plot/plot.h"
#include "simulate/simulation.h"

namespace kvcast::reports {

/// A row for each device, the first on top: its computations and waits above, its messages and the
/// background flows that it sends below. `result` must be a recorded run. Spans of one kind that
/// are too near each other for a picture are joined, in the CSV too; the trace has them all. Throws
/// Error when nothing took any time.
Plot gantt_plot(const simulate::Simulation& simulation, const simulate::RunResult& result,
                std::string title);

}  // namespace kvcast::reports
