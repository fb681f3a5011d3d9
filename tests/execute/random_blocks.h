/// Weights of stored types: blocks of random bits whose numbers are finite and of a usual size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "model/base/dtype.h"
#include "model/base/error.h"

namespace kvcast {

/// A half of a block: where it lies, its exponent, whether it is below 0.
struct BlockHalf {
  std::size_t at;
  std::uint32_t exponent;
  bool negative = false;
};

/// Such that numbers reach about 0.1.
inline std::vector<BlockHalf> block_halves(DType dtype) {
  switch (dtype) {
    case DType::Q8_0: return {{0, 5}};
    case DType::Q4_0: return {{0, 9}};
    case DType::Q5_0: return {{0, 8}};
    case DType::Q4_1: return {{0, 8}, {2, 11, true}};
    case DType::Q5_1: return {{0, 7}, {2, 11, true}};
    case DType::Q4_K: return {{0, 2}, {2, 4}};
    case DType::Q5_K: return {{0, 1}, {2, 4}};
    case DType::Q6_K: return {{208, 0}};  // a subnormal half
    case DType::IQ4_NL: return {{0, 5}};
    case DType::IQ4_XS: return {{0, 1}};
    default: KVCAST_ASSERT(false);
  }
}

inline std::vector<std::byte> random_blocks(DType dtype, std::size_t elements, unsigned seed) {
  const std::size_t size = bytes_of(Count(elements), dtype).constant();
  const auto step = static_cast<std::size_t>(width(dtype).block_bits) / 8;
  std::mt19937 random(seed);
  std::vector<std::byte> blocks(size);
  for (std::byte& b : blocks) b = static_cast<std::byte>(random() & 0xffu);
  const auto put = [&](std::size_t at, std::uint_fast32_t bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    std::memcpy(&blocks[at], &half, sizeof half);
  };
  for (std::size_t block = 0; block < size; block += step) {
    const auto sign = static_cast<std::uint32_t>((random() & 1u) << 15);
    if (dtype == DType::BF16) {
      put(block, sign | 0x3d00u | (random() & 0xffu));
    } else if (dtype == DType::FP16) {
      // One in eight is subnormal.
      put(block, sign | (random() % 8 == 0 ? 0u : 10u << 10) | (random() & 0x3ffu));
    } else if (dtype == DType::MXFP4) {
      blocks[block] = static_cast<std::byte>(120 + random() % 4);
    } else {
      for (const BlockHalf& half : block_halves(dtype)) {
        put(block + half.at,
            (half.negative ? 0x8000u : 0u) | half.exponent << 10 | (random() & 0x3ffu));
      }
    }
  }
  return blocks;
}

}  // namespace kvcast
