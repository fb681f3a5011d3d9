/// Times of a served closed loop, from those of steps: clients that each send their next request
/// when the last one ends.
#pragma once

#include <functional>

#include "roofline/forecast.h"

namespace kvcast::measure {

/// The forecast at `size` (of requests that start together), but with the mean TTFT and TPOT of
/// `size.batch` clients. Prompts are read one at a time, in steps that also decode.
/// TPOT   A request decodes while the other clients' prompts join, each once a cycle. Such a step
///        takes the prompt's time and the decoders' attention, instead of a decode step.
/// TTFT   A step that runs, prompts before (M/D/1 queue), the own one: for the length of the cycle.
///        Measured ones are 1.5 to 1.8 times as long: all clients' first prompts come at once.
roofline::Forecast in_closed_loop(
    const std::function<roofline::Forecast(const roofline::DesignPoint&)>& at,
    const roofline::DesignPoint& size);

}  // namespace kvcast::measure
