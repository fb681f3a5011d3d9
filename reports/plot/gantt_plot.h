/// A simulated run as a chart of bars over time.
#pragma once

#include <string>

#include "reports/plot/plot.h"
#include "simulate/simulation.h"

namespace kvcast::reports {

/// A row for each device, the first on top: above what it computes and when it waits, below its
/// messages under way and, of background flows, those that it sends. `result` was recorded. Spans
/// of one kind in one row that a picture cannot hold apart are joined, in its CSV too; the trace
/// has them all.
/// Throws Error when nothing took any time.
Plot gantt_plot(const simulate::Simulation& simulation, const simulate::RunResult& result,
                std::string title);

}  // namespace kvcast::reports
