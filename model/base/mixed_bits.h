/// Random bits from a number: the same on every machine.
#pragma once

#include <cstdint>

namespace kvcast {

/// What splitmix64 adds to its state for each number.
inline constexpr std::uint64_t splitmix_step = 0x9E3779B97F4A7C15;

/// The output of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
/// generators") for this state.
constexpr std::uint64_t mixed_bits(std::uint64_t state) {
  state = (state ^ (state >> 30U)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27U)) * 0x94D049BB133111EB;
  return state ^ (state >> 31U);
}

}  // namespace kvcast
