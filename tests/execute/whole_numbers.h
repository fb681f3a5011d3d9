/// Inputs of products whose sums have one right answer in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcast::execute {

/// Small whole numbers, all sums of which are exact in fp32.
inline std::vector<float> whole_numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> list(count);
  for (float& x : list) {
    seed = seed * 1664525 + 1013904223;  // Numerical Recipes' generator
    x = static_cast<float>(seed >> 28) - 7;
  }
  return list;
}

}  // namespace kvcast::execute
