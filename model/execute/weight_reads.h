/// How fast products read weights of each stored type, relative to weights in fp32.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/base/dtype.h"
#include "model/execute/arena.h"
#include "model/execute/floats.h"
#include "model/execute/matrix.h"
#include "model/execute/narrow_product.h"

namespace kvcast::execute {

/// All types lie in the same memory in turn: its first touch takes longer than a product.
class WeightReads {
 public:
  WeightReads();

  /// Products of so many rows, for each number of them: bytes per second relative to those with
  /// weights in fp32, both measured in turn in each round. Empty if the type has no product of its
  /// own in this arithmetic.
  std::vector<std::vector<double>> measure(DType dtype, Arithmetic arithmetic,
                                           std::span<const std::size_t> rows, int rounds);

 private:
  FloatStore store_;
  Matrix fp32_;
  std::size_t stored_floats_;
  Floats stored_;
};

}  // namespace kvcast::execute
