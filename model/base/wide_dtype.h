/// The dtype that kernels sum in.
#pragma once

#include "model/base/dtype.h"

namespace kvcast {

/// fp32 of fp16 and bf16, through which norms and softmax go; any other is its own.
inline DType wide_dtype(DType dtype) {
  return dtype == DType::FP16 || dtype == DType::BF16 ? DType::FP32 : dtype;
}

}  // namespace kvcast
