/// What a conversion for Slim attention does to a model's logits.
#pragma once

#include <cstdint>

#include "model/execute/generate.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast {

struct LogitComparison {
  double relative_error = 0;    ///< the norm of all differences over that of the source's logits
  std::uint64_t positions = 0;  ///< whose logits were compared, of all sequences
  std::uint64_t same = 0;       ///< of them the next token is the same
};

/// Runs the request on both, computed in fp32 from the weights as they lie in their files: the
/// prompt, all positions of it unless they are too many to be kept, and decode steps after what
/// `source` says, at least 16 where positions allow and no stop token ends them. The cache is fp32
/// too; what fewer bits of it add is in the conversion's errors of keys and values. Prompts of
/// different lengths are compared one after another. Throws Error as Session does.
LogitComparison compare_logits(const Checkpoint& source, const Checkpoint& converted,
                               const execute::Request& request);

}  // namespace kvcast
