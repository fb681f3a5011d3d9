/// Compares a model's logits before and after a conversion to Slim attention.
#pragma once

#include <cstdint>

#include "model/execute/generate.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast {

struct LogitComparison {
  double relative_error = 0;    ///< norm of all differences / norm of the source's logits
  std::uint64_t positions = 0;  ///< compared positions, over all sequences
  std::uint64_t same = 0;       ///< positions with the same next token
};

/// Runs the request on both models in fp32, with the weights as stored, and compares
/// - the prompt: all positions, unless their logits are too many to keep;
/// - decode steps on the tokens that `source` generates: at least 16, unless a stop token or
///   the model's positions end them.
/// The KV cache is fp32 too; the error of a cache with fewer bits is part of the conversion's
/// errors of keys and values. Prompts of different lengths run one after another. Throws Error as
/// Session does.
LogitComparison compare_logits(const Checkpoint& source, const Checkpoint& converted,
                               const execute::Request& request);

}  // namespace kvcast
