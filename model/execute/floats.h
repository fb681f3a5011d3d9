/// Blocks of fp32 numbers.
#pragma once

#include <cstddef>
#include <memory>

namespace kvcast::execute {

/// Frees what `allocate_floats` gave.
struct FreeFloats {
  void operator()(float* data) const noexcept;
};
using Floats = std::unique_ptr<float[], FreeFloats>;
/// Uninitialised, aligned to 64 bytes; large blocks in huge pages where the system has them.
/// Throws std::bad_alloc.
Floats allocate_floats(std::size_t count);

}  // namespace kvcast::execute
