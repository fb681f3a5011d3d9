/// Random numbers that are the same on every platform.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvcast {

/// SplitMix64 (Steele, Lea, Flood 2014). What is drawn from it is computed here too, since the
/// distributions of the standard library differ between platforms.
class Random {
 public:
  /// Streams of one seed are independent of each other.
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed) {
    state_ = next() ^ (stream * 0x9e3779b97f4a7c15ULL);
    next();
  }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// From 0 to below 1, multiples of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::uint32_t below(std::uint32_t n) {
    return std::min(n - 1, static_cast<std::uint32_t>(uniform() * n));
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvcast
