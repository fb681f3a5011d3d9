/// Parallel prefill of a model: from its layer times and a partition of the prompt to what the
/// simulator plays.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/layer_times.h"
#include "simulate/schedules.h"

namespace kvcast::simulate {

/// Rank i reads `partition_tokens[i]` tokens, in order of the prompt; the last one makes the
/// first token. Runahead attends over the tokens up to its own last one, TSP over what its kernels
/// read, in lockstep. A host of TSP issues the messages of a ring. Send order and all-gather are
/// left as they are by default. Throws Error when a rank has no tokens, or there is none.
PrefillWork prefill_work(const LayerTimes& times, Schedule schedule,
                         const std::vector<std::uint64_t>& partition_tokens,
                         const ExchangeCost& cost = {});

}  // namespace kvcast::simulate
