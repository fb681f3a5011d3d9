/// The operators at speed: vector loops and tiles, on all threads.
#pragma once

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Computes the node's output. `Elementwise`, `GatedActivation`, `Softmax` and `Rope` may have
/// their output in the place of their first input.
void run_fast(const Call& call);

/// True for operators whose output may lie where input 0 lay.
bool works_in_place(const Op& op);

/// The attention operators, in attention_kernels.cpp.
void attention_scores(const Call& call, const Heads& heads);
void attention_values(const Call& call, const Heads& heads);
void tiled_attention(const Call& call, const TiledAttention& op);

}  // namespace kvcast::execute
