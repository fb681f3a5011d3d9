/// A simulated run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <filesystem>

#include "simulate/simulation.h"

namespace kvcast::reports {

/// Writes Chrome trace JSON, completely or not at all. Each device is a process with a thread for
/// what it computes and one for its waits; its messages, which may overlap, are asynchronous
/// slices of the sender. Background flows have a process of their own. `result` must be a recorded
/// run. Throws Error as AtomicFile does.
void write_trace(const simulate::Simulation& simulation, const simulate::RunResult& result,
                 const std::filesystem::path& path);

}  // namespace kvcast::reports
