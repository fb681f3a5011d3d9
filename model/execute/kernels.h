/// The operators at speed: vector loops and tiles, on all threads.
#pragma once

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Computes the node's output. Operators that work_in_place() may have it in the place of their
/// first input.
void run_fast(const Call& call);

/// The attention operators, in attention_kernels.cpp.
void attention_scores(const Call& call, const Heads& heads);
void attention_values(const Call& call, const Heads& heads);
void tiled_attention(const Call& call, const TiledAttention& op);

}  // namespace kvcast::execute
