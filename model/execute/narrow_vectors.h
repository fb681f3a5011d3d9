/// Rounding to bf16, and the processors' own multiply-adds of narrow numbers, for functions of 16
/// or 8 lanes.
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

template <std::size_t lanes>
struct IntegersOf {
  typedef std::uint32_t Words
      __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));
  typedef std::int32_t Whole
      __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));
};
template <std::size_t lanes>
using Words = typename IntegersOf<lanes>::Words;
template <std::size_t lanes>
using Whole = typename IntegersOf<lanes>::Whole;

#if defined(__x86_64__) && defined(__gnu_linux__)
/// sums[lane] += two bf16 numbers of each lane times those of `row`. Needs AVX512-BF16.
KVCAST_INLINE void add_pairs(Vector<16>& sums, Whole<16> pairs, Whole<16> row) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(pairs), "v"(row));
}
/// sums[lane] += four bytes of each lane times the signed bytes of `row`. Needs AVX512-VNNI.
KVCAST_INLINE void add_quads(Whole<16>& sums, Whole<16> bytes, Whole<16> row) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(bytes), "v"(row));
}
inline constexpr std::int16_t sixteen_ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
/// The same for bytes below 128, whose products in pairs fit 16 bits. Needs AVX2.
KVCAST_INLINE void add_quads(Whole<8>& sums, Whole<8> bytes, Whole<8> row) {
  Whole<8> products;
  asm("vpmaddubsw %2, %3, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(products)
      : "x"(row), "x"(bytes), "m"(sixteen_ones));
}
/// The same for signed bytes and their absolute values: a row's number takes the sign.
KVCAST_INLINE void add_quads(Whole<8>& sums, Whole<8> bytes, Whole<8> sizes, Whole<8> row) {
  Whole<8> products;
  asm("vpsignb %3, %2, %1\n\tvpmaddubsw %1, %4, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(products)
      : "x"(row), "x"(bytes), "x"(sizes), "m"(sixteen_ones));
}
/// Of each byte; 128 for -128.
KVCAST_INLINE Whole<8> absolute_bytes(Whole<8> bytes) {
  asm("vpabsb %0, %0" : "+x"(bytes));
  return bytes;
}
/// A word or number of a row in each lane.
template <std::size_t lanes>
KVCAST_INLINE Whole<lanes> in_all_lanes(const std::uint32_t& word) {
  // GCC 12 makes a blend for every lane of anything else.
  Whole<lanes> all;
  asm("vpbroadcastd %1, %0" : "=v"(all) : "m"(word));
  return all;
}
template <std::size_t lanes>
KVCAST_INLINE Vector<lanes> in_all_lanes(const float& number) {
  Vector<lanes> all;
  asm("vbroadcastss %1, %0" : "=v"(all) : "m"(number));
  return all;
}
/// sums += a · b, fused, whatever stands around it: the same in all kernels.
template <std::size_t lanes>
KVCAST_INLINE void add_product(Vector<lanes>& sums, Vector<lanes> a, Vector<lanes> b) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}
#endif

}  // namespace kvcast::execute
