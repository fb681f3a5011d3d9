/// The rows that each expert of a layer reads.
#pragma once

#include <cstddef>
#include <vector>

#include "model/execute/operand.h"
#include "model/graph/forward_op.h"

namespace kvcast::execute {

/// By expert: the tokens' choices, row·K + k, that are this expert. `experts` is [batch, tokens,
/// K].
inline std::vector<std::vector<std::size_t>> choices_by_expert(const ExpertLinear& op,
                                                               const Operand& experts) {
  std::vector<std::vector<std::size_t>> choices(op.num_experts);
  for (std::size_t i = 0; i < experts.shape.elements(); ++i) {
    choices[static_cast<std::size_t>(experts.data[i])].push_back(i);
  }
  return choices;
}

}  // namespace kvcast::execute
