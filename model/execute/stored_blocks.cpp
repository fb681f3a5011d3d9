#include "model/execute/stored_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "model/base/error.h"
#include "model/execute/narrow_vectors.h"
#include "model/execute/vector_lanes.h"
#include "model/io/tensors/four_bit_numbers.h"

namespace kvcast::execute {
namespace {

template <std::size_t lanes>
struct HalvesOf {
  typedef std::uint16_t Halves
      __attribute__((vector_size(lanes * sizeof(std::uint16_t)), aligned(2), may_alias));
};
template <std::size_t lanes>
using Halves = typename HalvesOf<lanes>::Halves;

/// Numbers below 2^31.
template <std::size_t lanes>
KVCAST_INLINE Vector<lanes> to_floats(Words<lanes> w) {
  return __builtin_convertvector((Whole<lanes>)w, Vector<lanes>);
}

/// The fp16 numbers in the upper halves of the words, which are finite. With a larger exponent a
/// normal half's bits are those of the float x, and those of a subnormal one 2x - 2^-14, which is
/// the smaller of the two just then. Floats as small as halves times 2^-112 would need no such
/// choice, but processors take 100 times longer for them.
template <std::size_t lanes>
KVCAST_INLINE Vector<lanes> upper_halves(Words<lanes> w) {
  const Vector<lanes> normal = (Vector<lanes>)(((w >> 3) & 0x0fffe000u) + (112u << 23));
  const Vector<lanes> subnormal = 2.0F * normal - 0x1p-14F;
  const Vector<lanes> magnitude = subnormal < normal ? subnormal : normal;
  return (Vector<lanes>)((Words<lanes>)magnitude | (w & 0x80000000u));
}

template <std::size_t lanes>
KVCAST_INLINE Vector<lanes> lower_halves(Words<lanes> w) {
  return upper_halves<lanes>(w << 16);
}

/// The table's numbers with the indices in the words' lowest four bits; what is above them does not
/// matter.
template <std::size_t lanes>
KVCAST_INLINE Vector<lanes> looked_up(const std::array<float, 16>& table, Words<lanes> w) {
#ifndef __clang__
  if constexpr (lanes == 16) {
    return __builtin_shuffle(*reinterpret_cast<const Vector<16>*>(table.data()), w);
  } else if constexpr (lanes == 8) {
    return __builtin_shuffle(*reinterpret_cast<const Vector<8>*>(table.data()),
                             *reinterpret_cast<const Vector<8>*>(table.data() + 8), w);
  }
#endif
  Vector<lanes> numbers;
  for (std::size_t i = 0; i < lanes; ++i) numbers[i] = table[w[i] & 15u];
  return numbers;
}

/// A block of each row of a strip.
template <std::size_t lanes>
struct Block {
  const std::uint32_t* words;
  const std::uint16_t* halves;

  KVCAST_INLINE Words<lanes> word(std::size_t i) const {
    return *reinterpret_cast<const Words<lanes>*>(words + i * lanes);
  }
  KVCAST_INLINE Words<lanes> byte(std::size_t i) const {
    return word(i / 4) >> static_cast<std::uint32_t>(8 * (i % 4)) & 0xffu;
  }
  /// What the block has beside whole words.
  KVCAST_INLINE Words<lanes> rest() const {
    const Halves<lanes> h = *reinterpret_cast<const Halves<lanes>*>(halves);
    return __builtin_convertvector(h, Words<lanes>);
  }
  KVCAST_INLINE Vector<lanes> half() const { return lower_halves<lanes>(rest()); }
};

/// What four numbers that lie side by side are: `number[i] · factors[i]`, times the group's scale
/// and plus its minimum.
template <std::size_t lanes>
struct Four {
  Vector<lanes> number[4];
};

/// What a group's numbers are scaled by, and what is added.
template <std::size_t lanes>
struct GroupScale {
  Vector<lanes> scale;
  Vector<lanes> minimum;
};

// Each type below says how its blocks lie: their bytes, the numbers of a block and of a group, the
// scale of a group of the block, and the i-th four of its numbers. What blocks hold is described in
// stored_tensor.cpp.

/// Numbers as they are.
struct Unscaled {
  static constexpr std::array<float, 4> factors{1, 1, 1, 1};
  static constexpr bool scaled = false;
  static constexpr std::size_t block = 32;
  static constexpr std::size_t group = 32;
  static constexpr std::size_t block_bytes = 64;
};

struct Bf16 : Unscaled {
  template <std::size_t lanes>
  KVCAST_INLINE static Four<lanes> four(const Block<lanes>& b, std::size_t, std::size_t i) {
    const Words<lanes> w = b.word(2 * i);
    const Words<lanes> v = b.word(2 * i + 1);
    return {{(Vector<lanes>)(w << 16), (Vector<lanes>)(w & 0xffff0000u), (Vector<lanes>)(v << 16),
             (Vector<lanes>)(v & 0xffff0000u)}};
  }
};

struct Fp16 : Unscaled {
  template <std::size_t lanes>
  KVCAST_INLINE static Four<lanes> four(const Block<lanes>& b, std::size_t, std::size_t i) {
    const Words<lanes> w = b.word(2 * i);
    const Words<lanes> v = b.word(2 * i + 1);
    return {{lower_halves<lanes>(w), upper_halves<lanes>(w), lower_halves<lanes>(v),
             upper_halves<lanes>(v)}};
  }
};

/// A byte for each number, below 128 unless they are `wide`. Bytes are not moved to a word's end: a
/// power of two is left to the sums.
template <typename Type, bool wide = false>
struct Bytes {
  static constexpr std::array<float, 4> factors{1, 0x1p-8F, 0x1p-16F, wide ? 1 : 0x1p-24F};
  static constexpr bool scaled = true;

  template <std::size_t lanes>
  KVCAST_INLINE static Four<lanes> four(const Block<lanes>& b, std::size_t group, std::size_t i) {
    const Words<lanes> w = Type::template bytes<lanes>(b, group, i);
    return {{to_floats<lanes>(w & 0xffu), to_floats<lanes>(w & 0xff00u),
             to_floats<lanes>(w & 0xff0000u), to_floats<lanes>(wide ? w >> 24 : w & 0x7f000000u)}};
  }
};

/// Blocks of 32 numbers, one group each, with a half before whole words.
template <typename Type, bool wide = false>
struct HalfBefore : Bytes<Type, wide> {
  static constexpr std::size_t block = 32;
  static constexpr std::size_t group = 32;

  /// The numbers are less by `zero`.
  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    const Vector<lanes> scale = b.half();
    return {scale, scale * -Type::zero};
  }
};

/// The same with scale and minimum in the first word.
template <typename Type>
struct MinimumBefore : Bytes<Type> {
  static constexpr std::size_t block = 32;
  static constexpr std::size_t group = 32;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    const Words<lanes> both = b.word(0);
    return {lower_halves<lanes>(both), upper_halves<lanes>(both)};
  }
};

/// Four bits for each number: words from `first` on have the lower half of the numbers in their
/// bytes' lower bits.
template <std::size_t lanes>
KVCAST_INLINE Words<lanes> nibbles(const Block<lanes>& b, std::size_t first, std::size_t i) {
  return (i < 4 ? b.word(first + i) : b.word(first + i - 4) >> 4) & 0x0f0f0f0fu;
}

/// Bits 4i ... 4i + 3 as the fifth bits of four bytes.
template <std::size_t lanes>
KVCAST_INLINE Words<lanes> fifths(Words<lanes> bits, std::size_t i) {
  return ((bits >> static_cast<std::uint32_t>(4 * i) & 15u) * 0x02040810u) & 0x10101010u;
}

struct Q8_0 : HalfBefore<Q8_0, true> {
  static constexpr std::size_t block_bytes = 34;
  static constexpr float zero = 128;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t, std::size_t i) {
    return b.word(i) ^ 0x80808080u;
  }
};

struct Q4_0 : HalfBefore<Q4_0> {
  static constexpr std::size_t block_bytes = 18;
  static constexpr float zero = 8;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t, std::size_t i) {
    return nibbles<lanes>(b, 0, i);
  }
};

struct Q5_0 : HalfBefore<Q5_0> {
  static constexpr std::size_t block_bytes = 22;
  static constexpr float zero = 16;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t, std::size_t i) {
    return nibbles<lanes>(b, 1, i) | fifths<lanes>(b.word(0), i);
  }
};

struct Q4_1 : MinimumBefore<Q4_1> {
  static constexpr std::size_t block_bytes = 20;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t, std::size_t i) {
    return nibbles<lanes>(b, 1, i);
  }
};

struct Q5_1 : MinimumBefore<Q5_1> {
  static constexpr std::size_t block_bytes = 24;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t, std::size_t i) {
    return nibbles<lanes>(b, 2, i) | fifths<lanes>(b.word(1), i);
  }
};

/// Blocks of 256 numbers in 8 groups with 6-bit scales and minima; words of four-bit numbers from
/// `first` on.
template <typename Type>
struct SixBitScales : Bytes<Type> {
  static constexpr std::size_t block = 256;
  static constexpr std::size_t group = 32;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t g) {
    const Words<lanes> both = b.word(0);
    const auto shift = static_cast<std::uint32_t>(8 * (g % 4));
    Words<lanes> step = b.word(1) >> shift;
    Words<lanes> less = b.word(2) >> shift;
    if (g < 4) {
      step &= 63u;
      less &= 63u;
    } else {
      const Words<lanes> lower = b.word(3) >> shift;
      step = (lower & 15u) | (step >> 2 & 0x30u);
      less = (lower >> 4 & 15u) | (less >> 2 & 0x30u);
    }
    return {lower_halves<lanes>(both) * to_floats<lanes>(step),
            -upper_halves<lanes>(both) * to_floats<lanes>(less)};
  }

  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> lower_bits(const Block<lanes>& b, std::size_t g,
                                               std::size_t i) {
    const auto shift = static_cast<std::uint32_t>(4 * (g % 2));
    return b.word(Type::first + 8 * (g / 2) + i) >> shift & 0x0f0f0f0fu;
  }
};

struct Q4_K : SixBitScales<Q4_K> {
  static constexpr std::size_t block_bytes = 144;
  static constexpr std::size_t first = 4;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t g, std::size_t i) {
    return lower_bits<lanes>(b, g, i);
  }
};

struct Q5_K : SixBitScales<Q5_K> {
  static constexpr std::size_t block_bytes = 176;
  static constexpr std::size_t first = 12;
  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t g, std::size_t i) {
    const Words<lanes> fifth = b.word(4 + i) >> static_cast<std::uint32_t>(g) & 0x01010101u;
    return lower_bits<lanes>(b, g, i) | fifth << 4;
  }
};

struct Q6_K : Bytes<Q6_K> {
  static constexpr std::size_t block = 256;
  static constexpr std::size_t group = 16;
  static constexpr std::size_t block_bytes = 210;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t g) {
    // A signed byte.
    const auto step = (Whole<lanes>)(b.byte(192 + g) ^ 0x80u) - 128;
    const Vector<lanes> scale = b.half() * __builtin_convertvector(step, Vector<lanes>);
    return {scale, scale * -32.0F};
  }

  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t g, std::size_t i) {
    const std::size_t part = g / 8;
    const std::size_t row = g % 8 / 2;
    const Words<lanes> lower = b.word(16 * part + 8 * (row % 2) + 4 * (g % 2) + i);
    const Words<lanes> upper = b.word(32 + 8 * part + 4 * (g % 2) + i);
    return (lower >> static_cast<std::uint32_t>(row / 2 * 4) & 0x0f0f0f0fu) |
           (upper >> static_cast<std::uint32_t>(2 * row) & 0x03030303u) << 4;
  }
};

/// Numbers of a table, with four bits for each, that lie as in Q4_0.
template <typename Type>
struct Coded {
  static constexpr std::array<float, 4> factors{1, 1, 1, 1};
  static constexpr bool scaled = true;
  static constexpr std::size_t group = 32;

  template <std::size_t lanes>
  KVCAST_INLINE static Four<lanes> four(const Block<lanes>& b, std::size_t g, std::size_t i) {
    const Words<lanes> w = b.word(Type::first + 4 * g + i % 4) >> (i < 4 ? 0u : 4u);
    return {{looked_up<lanes>(Type::table, w), looked_up<lanes>(Type::table, w >> 8),
             looked_up<lanes>(Type::table, w >> 16), looked_up<lanes>(Type::table, w >> 24)}};
  }
};

struct IQ4_NL : Coded<IQ4_NL> {
  static constexpr std::size_t block = 32;
  static constexpr std::size_t block_bytes = 18;
  static constexpr std::size_t first = 0;
  static constexpr const std::array<float, 16>& table = iq4_numbers;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    return {b.half(), Vector<lanes>{}};
  }
};

struct IQ4_XS : Coded<IQ4_XS> {
  static constexpr std::size_t block = 256;
  static constexpr std::size_t block_bytes = 136;
  static constexpr std::size_t first = 2;
  static constexpr const std::array<float, 16>& table = iq4_numbers;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t g) {
    const Words<lanes> both = b.word(0);
    const Words<lanes> step = (b.word(1) >> static_cast<std::uint32_t>(4 * g) & 15u) |
                              (both >> static_cast<std::uint32_t>(16 + 2 * g) & 3u) << 4;
    const auto centred = (Whole<lanes>)step - 32;
    return {lower_halves<lanes>(both) * __builtin_convertvector(centred, Vector<lanes>),
            Vector<lanes>{}};
  }
};

struct MXFP4 : Coded<MXFP4> {
  static constexpr std::size_t block = 32;
  static constexpr std::size_t block_bytes = 17;
  static constexpr std::size_t first = 0;
  static constexpr const std::array<float, 16>& table = fp4_numbers;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    // The exponent of a float; 0 stands for 2^-127, which is subnormal.
    const Words<lanes> bits = b.rest() << 23;
    const Words<lanes> of_zero = (Words<lanes>)(bits == 0u) & 0x00400000u;
    return {(Vector<lanes>)(bits | of_zero), Vector<lanes>{}};
  }
};

/// e4m3 with an fp32 scale.
struct Fp8 {
  static constexpr std::array<float, 4> factors{1, 1, 1, 1};
  static constexpr bool scaled = true;
  static constexpr std::size_t block = 128;
  static constexpr std::size_t group = 32;
  static constexpr std::size_t block_bytes = 132;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    return {(Vector<lanes>)b.word(0), Vector<lanes>{}};
  }

  /// Of the uppermost bytes: as upper_halves, with other exponents.
  template <std::size_t lanes>
  KVCAST_INLINE static Vector<lanes> number(Words<lanes> w) {
    const Vector<lanes> normal = (Vector<lanes>)((w >> 4 & 0x07f00000u) + (120u << 23));
    const Vector<lanes> subnormal = 2.0F * normal - 0x1p-6F;
    const Vector<lanes> magnitude = subnormal < normal ? subnormal : normal;
    return (Vector<lanes>)((Words<lanes>)magnitude | (w & 0x80000000u));
  }

  template <std::size_t lanes>
  KVCAST_INLINE static Four<lanes> four(const Block<lanes>& b, std::size_t g, std::size_t i) {
    const Words<lanes> w = b.word(1 + 8 * g + i);
    return {
        {number<lanes>(w << 24), number<lanes>(w << 16), number<lanes>(w << 8), number<lanes>(w)}};
  }
};

/// Groups of `inputs` four-bit numbers, as row_block() has them.
template <std::size_t inputs>
struct Int4 : Bytes<Int4<inputs>> {
  static constexpr std::size_t block = inputs;
  static constexpr std::size_t group = 32;
  static constexpr std::size_t block_bytes = 4 + inputs / 2;

  template <std::size_t lanes>
  KVCAST_INLINE static GroupScale<lanes> scale(const Block<lanes>& b, std::size_t) {
    const Words<lanes> both = b.word(0);
    const Vector<lanes> scale = (Vector<lanes>)(both & 0xffffe000u);
    return {scale, -scale * to_floats<lanes>(both & 0x1fffu)};
  }

  template <std::size_t lanes>
  KVCAST_INLINE static Words<lanes> bytes(const Block<lanes>& b, std::size_t g, std::size_t i) {
    return nibbles<lanes>(b, 1 + 4 * g, i);
  }
};

/// f(a type of those above) for the type that it is; returns what f does.
template <typename F>
KVCAST_INLINE auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::BF16: return f(Bf16{});
    case DType::FP16: return f(Fp16{});
    case DType::Q8_0: return f(Q8_0{});
    case DType::Q4_0: return f(Q4_0{});
    case DType::Q4_1: return f(Q4_1{});
    case DType::Q5_0: return f(Q5_0{});
    case DType::Q5_1: return f(Q5_1{});
    case DType::Q4_K: return f(Q4_K{});
    case DType::Q5_K: return f(Q5_K{});
    case DType::IQ4_NL: return f(IQ4_NL{});
    case DType::IQ4_XS: return f(IQ4_XS{});
    case DType::MXFP4: return f(MXFP4{});
    case DType::FP8: return f(Fp8{});
    case DType::INT4_G32: return f(Int4<32>{});
    case DType::INT4_G64: return f(Int4<64>{});
    case DType::INT4_G128: return f(Int4<128>{});
    default: KVCAST_ASSERT(dtype == DType::Q6_K); return f(Q6_K{});
  }
}

/// What a strip's memory holds.
struct Layout {
  std::size_t words;  ///< of a block
  std::size_t blocks;
  std::size_t rest;  ///< bytes beside whole words: 2, 1 or 0
};

std::size_t block_bytes_of(DType dtype) {
  return with_type(dtype, [](auto type) { return decltype(type)::block_bytes; });
}

Layout layout_of(DType dtype, std::size_t in) {
  const std::size_t bytes = block_bytes_of(dtype);
  const std::size_t block = with_type(dtype, [](auto type) { return decltype(type)::block; });
  return {bytes / 4, (in + block - 1) / block, bytes % 4};
}

template <typename Type, std::size_t lanes>
KVCAST_INLINE Block<lanes> block_of(const StripPart& part, std::size_t i) {
  constexpr std::size_t words = Type::block_bytes / 4;
  const std::size_t blocks = (part.in + Type::block - 1) / Type::block;
  const auto* const halves =
      reinterpret_cast<const std::uint16_t*>(part.strip + blocks * words * lanes);
  return {part.strip + i * words * lanes, halves + i * lanes};
}

/// Bytes that are on their way to the second-level and the first-level cache while a group is
/// multiplied. On a Sapphire Rapids a row of Q8_0 or Q4_0 takes 0.8 times as long, and one of Q6_K
/// 0.7 times, as with the first-level cache alone.
constexpr std::size_t far_ahead = 16384;
constexpr std::size_t near_ahead = 2048;

/// Fetches what lies ahead of group `g`, as much as a group has.
template <std::size_t lanes, typename Type>
KVCAST_INLINE void fetch_ahead(const StripPart& part, std::size_t g) {
  constexpr std::size_t group_bytes =
      Type::block_bytes / 4 * 4 * lanes / (Type::block / Type::group);
  const char* const now = reinterpret_cast<const char*>(part.strip) + g * group_bytes;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < group_bytes; i += 64) {
    __builtin_prefetch(now + far_ahead + i, 0, 2);
    __builtin_prefetch(now + near_ahead + i, 0, 3);
  }
}

/// Rows that share what a group's bits become, as registers hold their sums.
template <std::size_t lanes>
constexpr std::size_t strip_rows = lanes == 16 ? 4 : 2;

/// `rows` rows from `row` on.
template <std::size_t lanes, typename Type, std::size_t rows>
KVCAST_INLINE void multiply_type_rows(const StripPart& part, const StripRows& all, std::size_t row,
                                      float* y, std::size_t step) {
  constexpr std::size_t groups = Type::block / Type::group;
  const float* const x = all.x + row * all.step;
  const float* const group_sums = all.sums + row * all.sums_step;
  Vector<lanes> total[rows] = {};
  for (std::size_t g = part.first / Type::group; g < (part.first + part.count) / Type::group; ++g) {
    const Block<lanes> block = block_of<Type, lanes>(part, g / groups);
    const float* const of_group = x + g * Type::group;
    fetch_ahead<lanes, Type>(part, g);
    Vector<lanes> sums[rows][4] = {};
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Type::group / 4; ++i) {
      const Four<lanes> four = Type::template four<lanes>(block, g % groups, i);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j < 4; ++j) {
          sums[r][j] += of_group[r * all.step + 4 * i + j] * four.number[j];
        }
      }
    }
    GroupScale<lanes> scale{};
    if constexpr (Type::scaled) scale = Type::template scale<lanes>(block, g % groups);
#pragma GCC unroll 4
    for (std::size_t r = 0; r < rows; ++r) {
      const Vector<lanes> sum = (sums[r][0] * Type::factors[0] + sums[r][3] * Type::factors[3]) +
                                (sums[r][1] * Type::factors[1] + sums[r][2] * Type::factors[2]);
      if constexpr (Type::scaled) {
        total[r] += scale.scale * sum + scale.minimum * group_sums[r * all.sums_step + g];
      } else {
        total[r] += sum;
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    *reinterpret_cast<Vector<lanes>*>(y + (row + r) * step) = total[r];
  }
}

/// Rows from `row` on, as many at a time as fit, then fewer.
template <std::size_t lanes, typename Type, std::size_t rows = strip_rows<lanes>>
KVCAST_INLINE void multiply_type(const StripPart& part, const StripRows& all, std::size_t row,
                                 float* y, std::size_t step) {
  for (; row + rows <= all.count; row += rows) {
    multiply_type_rows<lanes, Type, rows>(part, all, row, y, step);
  }
  if constexpr (rows > 1) multiply_type<lanes, Type, rows - 1>(part, all, row, y, step);
}

template <std::size_t lanes, typename Type>
KVCAST_INLINE void unpack_type(const StripPart& part, float* out, std::size_t step) {
  constexpr std::size_t groups = Type::block / Type::group;
  for (std::size_t g = part.first / Type::group; g < (part.first + part.count) / Type::group; ++g) {
    const Block<lanes> block = block_of<Type, lanes>(part, g / groups);
    GroupScale<lanes> scale{};
    if constexpr (Type::scaled) scale = Type::template scale<lanes>(block, g % groups);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Type::group / 4; ++i) {
      const Four<lanes> four = Type::template four<lanes>(block, g % groups, i);
#pragma GCC unroll 4
      for (std::size_t j = 0; j < 4; ++j, out += step) {
        Vector<lanes> number = four.number[j];
        if constexpr (Type::scaled) {
          number = number * (scale.scale * Type::factors[j]) + scale.minimum;
        }
        *reinterpret_cast<Vector<lanes>*>(out) = number;
      }
    }
  }
}

/// Whether numbers are bytes times a scale, and bytes above 127 among them.
template <typename Type>
constexpr bool is_wide = std::is_base_of_v<Bytes<Type, true>, Type>;
template <typename Type>
constexpr bool is_of_bytes = std::is_base_of_v<Bytes<Type>, Type> || is_wide<Type>;

/// Rounded to the nearest bf16, ties to even, in the upper halves.
template <std::size_t lanes>
KVCAST_INLINE Words<lanes> rounded_halves(Vector<lanes> numbers) {
  const auto bits = (Words<lanes>)numbers;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
}

template <std::size_t lanes, typename Type>
KVCAST_INLINE void unpack_type_pairs(const StripPart& part, std::uint32_t* out) {
  // A group is unpacked to where it stays in the first-level cache.
  alignas(64) float numbers[Type::group * lanes];
  for (std::size_t i = 0; i < part.count; i += Type::group) {
    unpack_type<lanes, Type>({part.dtype, part.strip, part.in, part.first + i, Type::group},
                             numbers, lanes);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < Type::group; k += 2, out += lanes) {
      const auto* const pair = reinterpret_cast<const Vector<lanes>*>(numbers + k * lanes);
      *reinterpret_cast<Words<lanes>*>(out) =
          rounded_halves<lanes>(pair[0]) >> 16 | rounded_halves<lanes>(pair[1]);
    }
  }
}

template <std::size_t lanes, typename Type>
KVCAST_INLINE void unpack_type_bytes(const StripPart& part, std::uint32_t* out, float* scales,
                                     float* minimums) {
  if constexpr (is_of_bytes<Type>) {
    constexpr std::size_t groups = Type::block / Type::group;
    const std::size_t end = (part.first + part.count) / Type::group;
    for (std::size_t g = part.first / Type::group; g < end; ++g) {
      const Block<lanes> block = block_of<Type, lanes>(part, g / groups);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < Type::group / 4; ++i, out += lanes) {
        *reinterpret_cast<Words<lanes>*>(out) = Type::template bytes<lanes>(block, g % groups, i);
      }
      const GroupScale<lanes> scale = Type::template scale<lanes>(block, g % groups);
      *reinterpret_cast<Vector<lanes>*>(scales) = scale.scale;
      *reinterpret_cast<Vector<lanes>*>(minimums) = scale.minimum;
      scales += lanes;
      minimums += lanes;
    }
  }
}

template <std::size_t lanes, typename Type>
KVCAST_INLINE void multiply_type_bytes(const StripPart& part, const std::uint32_t* x,
                                       const float* row_scales, const float* row_sums, float* y) {
  if constexpr (is_of_bytes<Type> && lanes >= 8) {
    constexpr std::size_t groups = Type::block / Type::group;
    const std::size_t end = (part.first + part.count) / Type::group;
    Vector<lanes> total{};
    for (std::size_t g = part.first / Type::group; g < end; ++g) {
      const Block<lanes> block = block_of<Type, lanes>(part, g / groups);
      fetch_ahead<lanes, Type>(part, g);
      Whole<lanes> sums{};
#pragma GCC unroll 8
      for (std::size_t i = 0; i < Type::group / 4; ++i) {
        const Words<lanes> bytes = Type::template bytes<lanes>(block, g % groups, i);
        const Whole<lanes> word = in_all_lanes<lanes>(x[g * Type::group / 4 + i]);
        if constexpr (lanes == 16) {
          add_quads(sums, (Whole<16>)bytes, word);
        } else if constexpr (is_wide<Type>) {
          const auto whole = (Whole<8>)(bytes ^ 0x80808080u);
          add_quads(sums, whole, absolute_bytes(whole), word);
        } else {
          add_quads(sums, (Whole<8>)bytes, word);
        }
      }
      GroupScale<lanes> scale = Type::template scale<lanes>(block, g % groups);
      if constexpr (lanes == 8 && is_wide<Type>) scale.minimum += 128 * scale.scale;
      total += scale.minimum * row_sums[g];
      total += __builtin_convertvector(sums, Vector<lanes>) * (scale.scale * row_scales[g]);
    }
    *reinterpret_cast<Vector<lanes>*>(y) = total;
  }
}

template <std::size_t lanes>
KVCAST_INLINE void multiply_lanes(const StripPart& part, const StripRows& rows, float* y,
                                  std::size_t step) {
  with_type(
      part.dtype, [&](auto type) __attribute__((always_inline)) {
        multiply_type<lanes, decltype(type)>(part, rows, 0, y, step);
      });
}

template <std::size_t lanes>
KVCAST_INLINE void unpack_lanes(const StripPart& part, float* out, std::size_t step) {
  with_type(
      part.dtype, [&](auto type) __attribute__((always_inline)) {
        unpack_type<lanes, decltype(type)>(part, out, step);
      });
}

template <std::size_t lanes>
KVCAST_INLINE void unpack_pairs_lanes(const StripPart& part, std::uint32_t* out) {
  with_type(
      part.dtype, [&](auto type) __attribute__((always_inline)) {
        unpack_type_pairs<lanes, decltype(type)>(part, out);
      });
}

template <std::size_t lanes>
KVCAST_INLINE void unpack_bytes_lanes(const StripPart& part, std::uint32_t* out, float* scales,
                                      float* minimums) {
  with_type(
      part.dtype, [&](auto type) __attribute__((always_inline)) {
        unpack_type_bytes<lanes, decltype(type)>(part, out, scales, minimums);
      });
}

template <std::size_t lanes>
KVCAST_INLINE void multiply_bytes_lanes(const StripPart& part, const std::uint32_t* x,
                                        const float* scales, const float* sums, float* y) {
  with_type(
      part.dtype, [&](auto type) __attribute__((always_inline)) {
        multiply_type_bytes<lanes, decltype(type)>(part, x, scales, sums, y);
      });
}

template <std::size_t lanes>
std::size_t lanes_of() {
  return lanes;
}

template <std::size_t lanes>
std::size_t strip_rows_of() {
  return strip_rows<lanes>;
}

}  // namespace

KVCAST_VECTOR_WIDTHS(std::size_t, strip_lanes, lanes_of, (), ())
KVCAST_VECTOR_WIDTHS(std::size_t, max_strip_rows, strip_rows_of, (), ())
KVCAST_VECTOR_WIDTHS(void, multiply_strip, multiply_lanes,
                     (const StripPart& part, const StripRows& rows, float* y, std::size_t step),
                     (part, rows, y, step))
KVCAST_VECTOR_WIDTHS(void, unpack_strip, unpack_lanes,
                     (const StripPart& part, float* out, std::size_t step), (part, out, step))

KVCAST_VECTOR_WIDTHS(void, unpack_pairs, unpack_pairs_lanes,
                     (const StripPart& part, std::uint32_t* out), (part, out))
KVCAST_VECTOR_WIDTHS(void, unpack_bytes, unpack_bytes_lanes,
                     (const StripPart& part, std::uint32_t* out, float* scales, float* minimums),
                     (part, out, scales, minimums))
KVCAST_VECTOR_WIDTHS(void, multiply_bytes, multiply_bytes_lanes,
                     (const StripPart& part, const std::uint32_t* x, const float* scales,
                      const float* sums, float* y),
                     (part, x, scales, sums, y))

bool has_bytes(DType dtype) {
  return has_strips(dtype) &&
         with_type(dtype, [](auto type) { return is_of_bytes<decltype(type)>; });
}

bool has_wide_bytes(DType dtype) {
  return has_bytes(dtype) && with_type(dtype, [](auto type) { return is_wide<decltype(type)>; });
}

std::span<const DType> stored_types() {
  static constexpr std::array types{
      DType::BF16,  DType::FP16, DType::Q8_0,     DType::Q4_0,     DType::Q4_1,     DType::Q5_0,
      DType::Q5_1,  DType::Q4_K, DType::Q5_K,     DType::Q6_K,     DType::IQ4_NL,   DType::IQ4_XS,
      DType::MXFP4, DType::FP8,  DType::INT4_G32, DType::INT4_G64, DType::INT4_G128};
  return types;
}

bool has_strips(DType dtype) {
  const std::span<const DType> types = stored_types();
  return std::find(types.begin(), types.end(), dtype) != types.end();
}

std::size_t strip_group(DType dtype) {
  return with_type(dtype, [](auto type) { return decltype(type)::group; });
}

std::size_t strip_words(DType dtype, std::size_t in) {
  const Layout layout = layout_of(dtype, in);
  const std::size_t halves = layout.rest > 0 ? layout.blocks * strip_lanes() : 0;
  const std::size_t words = layout.blocks * layout.words * strip_lanes() + (halves + 1) / 2;
  return (words + 15) / 16 * 16;
}

void pack_strip(DType dtype, std::size_t in, const std::byte* rows, std::size_t count,
                std::size_t row_bytes, std::uint32_t* strip) {
  const Layout layout = layout_of(dtype, in);
  const std::size_t lanes = strip_lanes();
  const std::size_t bytes = block_bytes_of(dtype);
  // Behind all of Q6_K's words, before those of the others.
  const std::size_t rest_at = dtype == DType::Q6_K ? bytes - 2 : 0;
  const std::size_t words_at = rest_at == 0 ? layout.rest : 0;
  auto* const halves =
      reinterpret_cast<std::uint16_t*>(strip + layout.blocks * layout.words * lanes);
  std::fill_n(strip, strip_words(dtype, in), 0u);
  for (std::size_t b = 0; b < layout.blocks; ++b) {
    // What a cut last block has of the words.
    const std::size_t there = std::min(bytes, row_bytes - b * bytes) - words_at;
    const std::size_t whole = std::min(layout.words, there / 4);
    for (std::size_t r = 0; r < count; ++r) {
      const std::byte* const block = rows + r * row_bytes + b * bytes;
      std::uint32_t* const to = strip + b * layout.words * lanes + r;
      const std::byte* const words = block + words_at;
      for (std::size_t w = 0; w < whole; ++w) std::memcpy(to + w * lanes, words + 4 * w, 4);
      if (whole < layout.words) std::memcpy(to + whole * lanes, words + 4 * whole, there % 4);
      if (layout.rest > 0) std::memcpy(halves + b * lanes + r, block + rest_at, layout.rest);
    }
  }
}

void sum_groups(std::span<const float> x, std::size_t group, float* sums) {
  for (std::size_t g = 0; g < x.size() / group; ++g) {
    float parts[8] = {};
    for (std::size_t i = 0; i < group; ++i) parts[i % 8] += x[g * group + i];
    sums[g] = ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
              ((parts[4] + parts[5]) + (parts[6] + parts[7]));
  }
}

}  // namespace kvcast::execute
