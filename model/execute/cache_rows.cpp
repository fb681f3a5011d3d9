#include "model/execute/cache_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "model/base/error.h"
#include "model/execute/narrow_product.h"
#include "model/execute/narrow_vectors.h"

namespace kvcast::execute {
namespace {

/// A float of a sign, an exponent and `mantissa` bits, whose exponents are less than fp32's by
/// `less`.
template <typename Bits, int mantissa, int less, std::uint32_t infinity, std::uint32_t nan>
struct SmallFloat {
  using Stored = Bits;
  static constexpr int width = 8 * sizeof(Bits);
  static constexpr int shift = 23 - mantissa;
  static constexpr bool has_infinity = nan - infinity > 1;

  KVCAST_INLINE static Bits narrow(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits >> (32 - width) & (1u << (width - 1));
    const std::uint32_t size = bits & 0x7fffffffu;
    // The smallest normal number; below it numbers are whole ones times its last place.
    constexpr std::uint32_t normal = (less + 1u) << 23;
    const std::uint32_t rounded =
        ((size + (1u << (shift - 1)) - 1u + (size >> shift & 1u)) >> shift) - (less << mantissa);
    // Adding 2^23 of such places rounds to whole ones.
    constexpr std::uint32_t places = (less + 1u + 23u - mantissa) << 23;
    const float sum = std::bit_cast<float>(size) + std::bit_cast<float>(places);
    const std::uint32_t whole = std::bit_cast<std::uint32_t>(sum) - places;
    std::uint32_t result = size < normal ? whole : rounded;
    result = result > infinity ? infinity : result;
    result = size > 0x7f800000u || (!has_infinity && size == 0x7f800000u) ? nan : result;
    return static_cast<Bits>(result | sign);
  }

  KVCAST_INLINE static float widen(Bits stored) {
    const std::uint32_t size = stored & ((1u << (width - 1)) - 1u);
    const std::uint32_t sign = static_cast<std::uint32_t>(stored >> (width - 1)) << 31;
    // Of a subnormal number these bits are those of half of it and half the smallest normal one:
    // twice that, less the latter, is the smaller just then.
    constexpr std::uint32_t bias = static_cast<std::uint32_t>(less) << 23;
    const float normal = std::bit_cast<float>((size << shift) + bias);
    const float subnormal = 2.0F * normal - std::bit_cast<float>(bias + (1u << 23));
    const float finite = subnormal < normal ? subnormal : normal;
    std::uint32_t bits = std::bit_cast<std::uint32_t>(finite);
    bits = size > infinity ? 0x7fc00000u : bits;
    bits = has_infinity && size == infinity ? 0x7f800000u : bits;
    return std::bit_cast<float>(bits | sign);
  }
};

using Half = SmallFloat<std::uint16_t, 10, 112, 0x7c00u, 0x7e00u>;
/// E4M3 without infinities: 0x7e is 448, 0x7f no number. Source: OCP 8-bit Floating Point 1.0.
using E4m3 = SmallFloat<std::uint8_t, 3, 120, 0x7eu, 0x7fu>;

struct Bf16Row {
  using Stored = std::uint16_t;
  KVCAST_INLINE static Stored narrow(float x) { return static_cast<Stored>(bf16_bits(x)); }
  KVCAST_INLINE static float widen(Stored stored) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16);
  }
};

template <typename Type>
KVCAST_INLINE void narrow_numbers(const float* x, std::size_t n, std::byte* row) {
  auto* const out = reinterpret_cast<typename Type::Stored*>(row);
  for (std::size_t i = 0; i < n; ++i) out[i] = Type::narrow(x[i]);
}
template <typename Type>
KVCAST_INLINE void widen_numbers(const std::byte* row, std::size_t n, float* out) {
  const auto* const x = reinterpret_cast<const typename Type::Stored*>(row);
  for (std::size_t i = 0; i < n; ++i) out[i] = Type::widen(x[i]);
}

KVCAST_VECTOR_CLONES void narrow_fp16(const float* x, std::size_t n, std::byte* row) {
  narrow_numbers<Half>(x, n, row);
}
KVCAST_VECTOR_CLONES void narrow_bf16(const float* x, std::size_t n, std::byte* row) {
  narrow_numbers<Bf16Row>(x, n, row);
}
KVCAST_VECTOR_CLONES void narrow_fp8(const float* x, std::size_t n, std::byte* row) {
  narrow_numbers<E4m3>(x, n, row);
}
KVCAST_VECTOR_CLONES void widen_fp16(const std::byte* row, std::size_t n, float* out) {
  widen_numbers<Half>(row, n, out);
}
KVCAST_VECTOR_CLONES void widen_bf16(const std::byte* row, std::size_t n, float* out) {
  widen_numbers<Bf16Row>(row, n, out);
}
KVCAST_VECTOR_CLONES void widen_fp8(const std::byte* row, std::size_t n, float* out) {
  widen_numbers<E4m3>(row, n, out);
}
KVCAST_VECTOR_CLONES void widen_int8(const std::int8_t* x, std::size_t n, float scale, float* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(x[i]);
}

std::size_t number_bytes(DType dtype) {
  return dtype == DType::FP16 || dtype == DType::BF16 ? 2 : 1;
}

}  // namespace

bool is_narrow_cache(DType dtype) {
  return dtype == DType::FP16 || dtype == DType::BF16 || dtype == DType::FP8 ||
         dtype == DType::INT8;
}

DType parse_cache_dtype(const std::string& text, const std::string& flag) {
  for (const DType dtype : {DType::FP32, DType::FP16, DType::BF16, DType::FP8, DType::INT8}) {
    if (text == name(dtype)) return dtype;
  }
  throw Error(flag, text, "fp32, fp16, bf16, int8 or fp8");
}

std::size_t CacheForm::row_bytes() const {
  const std::size_t numbers = features * number_bytes(dtype);
  return dtype == DType::INT8 ? numbers + features / group * sizeof(float) : numbers;
}

void narrow_row(const CacheForm& form, const float* numbers, std::byte* row) {
  switch (form.dtype) {
    case DType::FP16: return narrow_fp16(numbers, form.features, row);
    case DType::BF16: return narrow_bf16(numbers, form.features, row);
    case DType::FP8: return narrow_fp8(numbers, form.features, row);
    default: break;
  }
  KVCAST_ASSERT(form.dtype == DType::INT8);
  for (std::size_t i = 0; i < form.features; i += form.group) {
    const float scale =
        round_to_whole(numbers + i, form.group, reinterpret_cast<std::int8_t*>(row) + i);
    std::memcpy(row + form.features + i / form.group * sizeof(float), &scale, sizeof scale);
  }
}

void widen_row(const CacheForm& form, const std::byte* row, std::size_t first, std::size_t count,
               float* out) {
  const std::byte* const from = row + first * number_bytes(form.dtype);
  switch (form.dtype) {
    case DType::FP16: return widen_fp16(from, count, out);
    case DType::BF16: return widen_bf16(from, count, out);
    case DType::FP8: return widen_fp8(from, count, out);
    default: break;
  }
  KVCAST_ASSERT(form.dtype == DType::INT8);
  for (std::size_t i = first; i < first + count;) {
    const std::size_t g = i / form.group;
    const std::size_t end = std::min(first + count, (g + 1) * form.group);
    float scale = 0;
    std::memcpy(&scale, row + form.features + g * sizeof scale, sizeof scale);
    widen_int8(reinterpret_cast<const std::int8_t*>(row) + i, end - i, scale, out + i - first);
    i = end;
  }
}

}  // namespace kvcast::execute
