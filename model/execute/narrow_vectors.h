/// Rounding to bf16, and the processors' own multiply-adds of narrow numbers, for functions of 16
/// lanes.
#pragma once

#include <bit>
#include <cstdint>

#include "model/execute/vector_lanes.h"

namespace kvcast::execute {

/// To the nearest, ties to even.
KVCAST_INLINE std::uint32_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return x != x ? 0x7fc0u : rounded;
}

typedef std::int32_t Whole16 __attribute__((vector_size(64), aligned(4), may_alias));

#if defined(__x86_64__) && defined(__gnu_linux__)
/// sums[lane] += two bf16 numbers of each lane times those of `row`. Needs AVX512-BF16.
KVCAST_INLINE void add_pairs(Vector<16>& sums, Whole16 pairs, Whole16 row) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(pairs), "v"(row));
}
/// sums[lane] += four bytes of each lane times the signed bytes of `row`. Needs AVX512-VNNI.
KVCAST_INLINE void add_quads(Whole16& sums, Whole16 bytes, Whole16 row) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(bytes), "v"(row));
}
/// A word of a row in each lane.
KVCAST_INLINE Whole16 in_all_lanes(const std::uint32_t& word) {
  // GCC 12 makes a blend for every lane of anything else.
  Whole16 all;
  asm("vpbroadcastd %1, %0" : "=v"(all) : "m"(word));
  return all;
}
/// sums += a · b, fused, whatever stands around it: the same in all kernels.
KVCAST_INLINE void add_product(Vector<16>& sums, Vector<16> a, Vector<16> b) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}
#endif

}  // namespace kvcast::execute
