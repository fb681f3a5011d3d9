/// Rows of a cache in types narrower than fp32: fp16, bf16, fp8 (e4m3), and int8 with a scale for
/// each token and head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/base/dtype.h"

namespace kvcast::execute {

bool is_narrow_cache(DType dtype);
/// Throws Error naming `flag` unless sessions can keep a cache in the type: FP32 or a narrow one.
DType parse_cache_dtype(const std::string& text, const std::string& flag);

/// How a row lies: its numbers, then in INT8 the scales, fp32.
struct CacheForm {
  DType dtype = DType::FP32;
  std::size_t features = 0;
  std::size_t group = 0;  ///< numbers that share a scale

  std::size_t row_bytes() const;
};

/// A row of numbers [features], rounded to the nearest, ties to even. Numbers beyond FP8's largest,
/// 448, become that; beyond FP16's, infinite.
void narrow_row(const CacheForm& form, const float* numbers, std::byte* row);
/// Numbers [first, first + count) of a row.
void widen_row(const CacheForm& form, const std::byte* row, std::size_t first, std::size_t count,
               float* out);

}  // namespace kvcast::execute
