/// Weights in the types that products read as they are stored.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/matrix.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/packed_weight.h"
#include "model/io/tensors/stored_tensor.h"
#include "tests/execute/random_blocks.h"

namespace kvcast::execute {

constexpr std::array tested_types{
    DType::BF16, DType::FP16, DType::Q8_0, DType::Q4_0,   DType::Q4_1,   DType::Q5_0, DType::Q5_1,
    DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4};

/// Those of weights that several tensors hold together.
constexpr std::array packed_types{DType::FP8, DType::INT4_G32, DType::INT4_G64, DType::INT4_G128};

inline std::vector<DType> all_types() {
  std::vector<DType> all(tested_types.begin(), tested_types.end());
  all.insert(all.end(), packed_types.begin(), packed_types.end());
  return all;
}

/// Random bytes, or scales from 1/1024 to 1/512.
inline StoredTensor random_tensor(const char* type, std::vector<std::uint64_t> shape,
                                  std::size_t bytes, bool scales = false) {
  std::mt19937 random(9);
  std::vector<std::byte> content(bytes);
  for (std::byte& b : content) b = static_cast<std::byte>(random() & 0xffu);
  for (std::size_t i = 0; scales && i < bytes; i += 4) {
    const auto scale = std::ldexp(static_cast<float>(1024 + random() % 1024), -20);
    std::memcpy(&content[i], &scale, sizeof scale);
  }
  StoredTensor t;
  t.name = type;
  t.shape = std::move(shape);
  t.type = type;
  t.file = MappedFile::from_bytes("test", content);
  t.bytes = t.file->bytes();
  return t;
}

inline StoredTensor random_packed(DType dtype, std::size_t out, std::size_t in) {
  if (dtype == DType::FP8) {
    StoredTensor codes = random_tensor("F8_E4M3", {out, in}, out * in);
    // Without NaN.
    std::vector<std::byte> bytes(codes.bytes.begin(), codes.bytes.end());
    for (std::byte& b : bytes) {
      if ((b & std::byte{0x7f}) == std::byte{0x7f}) b = std::byte{1};
    }
    codes.file = MappedFile::from_bytes("test", bytes);
    codes.bytes = codes.file->bytes();
    const std::size_t blocks = (in + 127) / 128;
    return packed_tensor(
        "w", Fp8Weight{codes, random_tensor("F32", {out, blocks}, 4 * out * blocks, true), 1, 128});
  }
  const std::size_t group = row_block(dtype).elements;
  const std::size_t groups = in / group;
  // 16 bits of a float, as bf16 has them: of fp32 scales no blocks are made.
  const StoredTensor wide = random_tensor("F32", {groups, out}, 4 * out * groups, true);
  std::vector<std::byte> halves(2 * out * groups);
  for (std::size_t i = 0; i < out * groups; ++i) {
    std::memcpy(&halves[2 * i], &wide.bytes[4 * i + 2], 2);
  }
  StoredTensor scales = wide;
  scales.dtype = DType::BF16;
  scales.file = MappedFile::from_bytes("test", halves);
  scales.bytes = scales.file->bytes();
  return packed_tensor(
      "w", Int4Weight{.order = Int4Weight::Order::Inputs,
                      .codes = random_tensor("I32", {in / 8, out}, in * out / 2),
                      .scales = scales,
                      .zeros = random_tensor("I32", {groups, out / 8}, groups * out / 2),
                      .zero_offset = 1,
                      .group = group});
}

/// A weight [out, in] of random blocks, and its numbers as read_elements has them.
struct StoredWeight {
  std::size_t out;
  std::size_t in;
  DType dtype;
  StoredTensor tensor;
  std::vector<float> numbers;

  StoredWeight(std::size_t out_features, std::size_t in_features, DType type)
      : out(out_features), in(in_features), dtype(type), numbers(out * in) {
    if (std::find(tested_types.begin(), tested_types.end(), type) == tested_types.end()) {
      tensor = random_packed(type, out, in);
      REQUIRE(tensor.dtype == type);
    } else {
      tensor.name = "w";
      tensor.dtype = dtype;
      tensor.shape = {out, in};
      tensor.file = MappedFile::from_bytes("test", random_blocks(dtype, out * in, 5));
      tensor.bytes = tensor.file->bytes();
    }
    read_elements(tensor, 0, std::span(numbers));
  }
  Matrix matrix(FloatStore& store, Arithmetic arithmetic = Arithmetic::FP32) const {
    return {out,
            in,
            dtype,
            [this](std::size_t first, std::size_t rows, std::span<std::byte> blocks) {
              for (std::size_t r = 0; r < rows; ++r) {
                const std::size_t row = blocks.size() / rows;
                read_blocks(tensor, (first + r) * in, blocks.subspan(r * row, row));
              }
            },
            store,
            arithmetic};
  }
  double largest() const {
    double most = 0;
    for (const float w : numbers) most = std::max<double>(most, std::abs(w));
    return most;
  }
};

/// Some inputs about the sizes of blocks, groups and windows; halves need no whole blocks.
inline std::vector<std::size_t> input_sizes(DType dtype) {
  const std::size_t block = row_block(dtype).elements;
  if (block == 256) return {256, 768};
  if (dtype == DType::FP8) return {1, 33, 128, 300, 801};
  if (block == 64 || block == 128) return {block, 768};
  if (block == 32) return {32, 96, 416, 800};
  return {1, 31, 33, 64, 385, 801};
}

/// Words hold eight codes of int4.
inline std::vector<std::size_t> output_sizes(DType dtype) {
  const bool in_words =
      std::find(packed_types.begin(), packed_types.end(), dtype) != packed_types.end() &&
      dtype != DType::FP8;
  return in_words ? std::vector<std::size_t>{8, 136} : std::vector<std::size_t>{1, 17, 64, 130};
}

}  // namespace kvcast::execute
