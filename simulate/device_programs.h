/// Programs of a prefill that is spread over devices (tensor, pipeline, expert, data parallelism):
/// every device plays its recorded pass, with collectives and hidden states as messages.
#pragma once

#include "roofline/estimator.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// Of the configuration's parallelism on its interconnect, whose device r is rank r. Operators
/// between two messages are one computation, labelled with the phase of the last. Devices of a
/// stage do the same. In a pipeline the micro-batches follow each other. What a host takes for
/// requests and steps comes first. Throws Error: methods that do not fit, helper passes, an engine
/// that reads the prompts in several steps, more than max_instructions.
Programs device_programs(const roofline::Configuration& c, const roofline::DesignPoint& point);

}  // namespace kvcast::simulate
