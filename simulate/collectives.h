/// Collectives as messages, and the platforms of nodes that they run on.
#pragma once

#include <cstdint>
#include <string>

#include "model/graph/collective.h"
#include "roofline/interconnect.h"
#include "simulate/platform.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// Throws Error for more devices than a simulation has.
void check_size(const roofline::InterconnectData& data);
/// Devices "node0 device0", ... below the switches of their node; between nodes each device has an
/// adapter of its own into one fabric that never blocks, at its payload's rate. Throws Error as
/// Platform does.
Platform node_platform(const roofline::InterconnectData& data);

/// Appends one collective to the programs of the group's ranks, by the algorithm that the closed
/// form chose: rings step by step, one-shot and all-to-all to all at once, two-shot and the sums of
/// switches as a direct reduce-scatter and all-gather of what a link carries. Over several nodes
/// parts of the buffer go through the stages one behind the other; the stages inside a node are
/// direct, and so is a group with unequal parts of nodes. What the closed form takes beyond the
/// messages on idle links is computing before each step, so that there the simulated time is the
/// closed form's. Messages of a step leave at once: run with SendOrder::Async. Throws Error as
/// Interconnect::plan, and for programs that are not one for each device.
void append_collective(const roofline::Interconnect& interconnect, CollectiveKind kind,
                       const RankGroup& group, const std::string& library, std::uint64_t bytes,
                       Programs& programs);

}  // namespace kvcast::simulate
