/// Blocks of fp32 numbers; fp64 numbers lie in them too, each in the place of two.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include "model/base/dtype.h"

namespace kvcast::execute {

/// Frees what `allocate_floats` gave.
struct FreeFloats {
  void operator()(float* data) const noexcept;
};
using Floats = std::unique_ptr<float[], FreeFloats>;
/// Uninitialised, aligned to 64 bytes; large blocks in huge pages where the system has them.
/// Throws std::bad_alloc.
Floats allocate_floats(std::size_t count);

/// Floats in whose place a number of `dtype`, FP32 or FP64, lies.
inline std::size_t floats_in(DType dtype) { return dtype == DType::FP64 ? 2 : 1; }

/// f(numbers), a pointer to what lies at `data`: float or double, const as `data` is.
template <typename Float, typename F>
auto with_numbers(DType dtype, Float* data, F f) {
  using Double = std::conditional_t<std::is_const_v<Float>, const double, double>;
  return dtype == DType::FP64 ? f(reinterpret_cast<Double*>(data)) : f(data);
}

}  // namespace kvcast::execute
