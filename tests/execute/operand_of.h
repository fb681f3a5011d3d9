/// Operands of kernels that a test calls by themselves.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Of fp32 numbers, whose sequences lie `batch_stride` apart.
inline Operand operand_of(std::vector<float>& numbers, std::initializer_list<std::size_t> shape,
                          std::size_t batch_stride) {
  static const TensorInfo info;
  Operand x;
  x.info = &info;
  x.shape = shape;
  x.data = numbers.data();
  x.batch_stride = batch_stride;
  return x;
}

}  // namespace kvcast::execute
