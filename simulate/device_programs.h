/// Programs of a request that is spread over devices (tensor, pipeline, expert, data parallelism,
/// ranks of kvr and tsp): every device plays its recorded passes, with collectives, hidden states,
/// keys and values as messages.
#pragma once

#include <cstdint>
#include <vector>

#include "roofline/estimator.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// Of the configuration's parallelism on its interconnect, whose device r is rank r: helper passes,
/// the prompt, and the steps after the first token. Operators between two messages are one
/// computation, labelled with the phase of the last. Devices of a group do the same. In a pipeline
/// the micro-batches follow each other, and the last stage sends their tokens to the first; an
/// engine with a limit of tokens reads the prompts in its own steps. What a host takes for requests
/// and steps comes first. `partition`: the tokens of a placement's ranks, empty without one. Throws
/// Error: methods that do not fit, more than max_instructions.
Programs device_programs(const roofline::Configuration& c, const roofline::DesignPoint& point,
                         const std::vector<std::uint64_t>& partition = {});

}  // namespace kvcast::simulate
