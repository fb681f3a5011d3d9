/// What outlives the passes that use it.
#pragma once

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Weights, their gradients and the states of an optimiser, by Storage and name.
class TensorStore {
 public:
  virtual ~TensorStore() = default;
  /// Sets data, matrix or table of the operand, whatever there is of them. The store must have the
  /// tensor.
  virtual void bind(const TensorInfo& tensor, Operand& operand) const = 0;
};

/// Whether a tensor is one of a store, not of a pass.
inline bool is_stored(const TensorInfo& tensor) {
  return tensor.storage == Storage::Weights || tensor.storage == Storage::Gradients ||
         tensor.storage == Storage::OptimizerStates;
}

}  // namespace kvcast::execute
