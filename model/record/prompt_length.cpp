#include "model/record/prompt_length.h"

#include <variant>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {

void check_prompt_length(const Recording& recording, std::uint64_t prompt_len) {
  if (!recording.selection) return;
  const std::uint64_t chunk = recording.selection->chunk;
  if (chunk > prompt_len) {
    throw Error("prompt in chunks that are kept or dropped",
                fmt::format("chunks of {} tokens", chunk),
                fmt::format("at most the prompt's {}: one chunk is all of it", prompt_len));
  }
  for (const RecordedPass& pass : recording.helpers()) {
    for (const Node& node : pass.graph.nodes()) {
      const auto* const op = std::get_if<LargestProbability>(&node.op);
      // As many before as after: from 2n - 1 on, every mean is over all n tokens.
      if (op == nullptr || op->pool / 2 <= prompt_len) continue;
      throw Error("importance pooled over neighbours", fmt::format("{} tokens", op->pool),
                  fmt::format("at most twice the prompt's {} and one", prompt_len));
    }
  }
}

}  // namespace kvcast
