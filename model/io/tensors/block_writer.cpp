#include "model/io/tensors/block_writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

template <std::size_t n>
using Numbers = std::span<const float, n>;

[[noreturn]] void fail_large(float x, const char* largest) {
  throw Error("a number to write", fmt::format("{}", x), fmt::format("at most {}", largest));
}

/// The bits of the nearest half, ties to even.
std::uint16_t half_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  constexpr std::uint32_t too_large = 0x477ff000u;        // 65520, halfway from 65504 to 65536
  constexpr std::uint32_t smallest_normal = 0x38800000u;  // 2^-14
  if (magnitude >= too_large) fail_large(x, "65504, the largest of fp16");
  if (magnitude < smallest_normal) {
    // The last bit of 0.5 + x is worth a step of subnormal halves.
    const auto sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F);
    return static_cast<std::uint16_t>(sign | (sum - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

std::uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  if ((rounded & 0x7fffu) >= 0x7f80u) fail_large(x, "3.39e38, the largest of bf16");
  return rounded;
}

/// Writes x as a half; returns what it has become.
float put_half(float x, std::byte* to) {
  const std::uint16_t bits = half_bits(x);
  std::memcpy(to, &bits, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 0x3ff;
  const int whole = exponent > 0 ? fraction | 0x400 : fraction;
  const float magnitude = std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// The nearest whole number, ties to even, of |x| < 2^22.
int nearest(float x) {
  const float shifted = x + 12582912.0F;  // 1.5 · 2^23
  return static_cast<int>(std::bit_cast<std::uint32_t>(shifted) & 0x007fffffu) - 0x00400000;
}

std::byte both(int low, int high) { return static_cast<std::byte>(low | high << 4); }

float inverse(float x) { return x != 0 ? 1.0F / x : 0.0F; }

float largest_magnitude(std::span<const float> x) {
  float most = 0;
  for (const float v : x) most = std::max(most, std::abs(v));
  return most;
}

/// The first of the numbers whose magnitude is the largest; 0 if all are.
float extreme(std::span<const float> x) {
  float found = 0;
  for (const float v : x) {
    if (std::abs(found) < std::abs(v)) found = v;
  }
  return found;
}

void write_q8_0(Numbers<32> x, std::byte* to) {
  const float scale = largest_magnitude(x) / 127;
  put_half(scale, to);
  const float inverted = inverse(scale);
  for (std::size_t i = 0; i < 32; ++i) {
    to[2 + i] = static_cast<std::byte>(static_cast<int>(std::round(x[i] * inverted)));
  }
}

/// Numbers from -zero to zero - 1, plus zero; the extreme one is -zero.
std::array<int, 32> symmetric_codes(Numbers<32> x, int zero, std::byte* scale_to) {
  const float scale = extreme(x) / static_cast<float>(-zero);
  put_half(scale, scale_to);
  const float inverted = inverse(scale);
  std::array<int, 32> codes;
  for (std::size_t i = 0; i < 32; ++i) {
    const int code = static_cast<int>(x[i] * inverted + (static_cast<float>(zero) + 0.5F));
    codes[i] = std::min(2 * zero - 1, code);
  }
  return codes;
}

void put_fives(const std::array<int, 32>& codes, std::byte* to) {
  std::uint32_t fifths = 0;
  for (std::size_t i = 0; i < 32; ++i) fifths |= static_cast<std::uint32_t>(codes[i] >> 4) << i;
  std::memcpy(to, &fifths, sizeof fifths);
  for (std::size_t i = 0; i < 16; ++i) to[4 + i] = both(codes[i] & 15, codes[i + 16] & 15);
}

void write_q4_0(Numbers<32> x, std::byte* to) {
  const std::array<int, 32> codes = symmetric_codes(x, 8, to);
  for (std::size_t i = 0; i < 16; ++i) to[2 + i] = both(codes[i], codes[i + 16]);
}

void write_q5_0(Numbers<32> x, std::byte* to) { put_fives(symmetric_codes(x, 16, to), to + 2); }

void write_q5_1(Numbers<32> x, std::byte* to) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float scale = (*high - *low) / 31;
  put_half(scale, to);
  put_half(*low, to + 2);
  const float inverted = inverse(scale);
  std::array<int, 32> codes;
  for (std::size_t i = 0; i < 32; ++i) {
    codes[i] = static_cast<int>((x[i] - *low) * inverted + 0.5F);
  }
  put_fives(codes, to + 4);
}

/// x ≈ scale · code - less, codes from 0 to `most`.
struct Group {
  float scale = 0;
  float less = 0;
};

struct Search {
  int most;     ///< the largest code
  float first;  ///< added to `most` in the first of the inverse scales that are tried
  int steps;    ///< of 0.1
};

/// For each inverse scale to try, the codes that it gives; for those, the scale and the minimum of
/// the least squares, numbers weighted. The best of them.
Group fit_group(Numbers<32> x, const std::array<float, 32>& weights, const Search& search,
                std::array<int, 32>& codes) {
  float low = x[0];
  float high = x[0];
  float sum_w = weights[0];
  float sum_x = sum_w * x[0];
  for (std::size_t i = 1; i < 32; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  low = std::min(low, 0.0F);
  codes.fill(0);
  if (high == low) return {0, -low};
  const auto most = static_cast<float>(search.most);
  // From the best minimum so far on.
  const auto code_of = [&](float inverted, std::size_t i) {
    return std::clamp(nearest(inverted * (x[i] - low)), 0, search.most);
  };
  const auto error_of = [&](const std::array<int, 32>& tried, float scale, float minimum) {
    float error = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const float off = scale * static_cast<float>(tried[i]) + minimum - x[i];
      error += weights[i] * (off * off);
    }
    return error;
  };
  float inverted = most / (high - low);
  float best = 1 / inverted;
  for (std::size_t i = 0; i < 32; ++i) codes[i] = code_of(inverted, i);
  float least = error_of(codes, best, low);
  for (int step = 0; step <= search.steps; ++step) {
    inverted = (search.first + 0.1F * static_cast<float>(step) + most) / (high - low);
    std::array<int, 32> tried;
    float sum_l = 0;
    float sum_l2 = 0;
    float sum_xl = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      tried[i] = code_of(inverted, i);
      const auto l = static_cast<float>(tried[i]);
      sum_l += weights[i] * l;
      sum_l2 += weights[i] * l * l;
      sum_xl += weights[i] * l * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    float scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (minimum > 0) {
      minimum = 0;
      scale = sum_xl / sum_l2;
    }
    const float error = error_of(tried, scale, minimum);
    if (error < least) {
      codes = tried;
      least = error;
      best = scale;
      low = minimum;
    }
  }
  return {best, -low};
}

/// The half scale, the half minimum and the 12 bytes of Q4_K and Q5_K; the codes for them.
std::array<int, 256> six_bit_groups(Numbers<256> x, const Search& search, std::byte* to) {
  std::array<int, 256> codes;
  std::array<Group, 8> groups;
  float most_scale = 0;
  float most_less = 0;
  for (std::size_t j = 0; j < 8; ++j) {
    const Numbers<32> part(x.data() + 32 * j, 32);
    float sum = 0;
    for (const float v : part) sum += v * v;
    const float average = std::sqrt(sum / 32);
    std::array<float, 32> weights;
    for (std::size_t i = 0; i < 32; ++i) weights[i] = average + std::abs(part[i]);
    std::array<int, 32> own;
    groups[j] = fit_group(part, weights, search, own);
    std::copy(own.begin(), own.end(), codes.begin() + static_cast<std::ptrdiff_t>(32 * j));
    most_scale = std::max(most_scale, groups[j].scale);
    most_less = std::max(most_less, groups[j].less);
  }
  const float of_scale = most_scale > 0 ? 63 / most_scale : 0;
  const float of_less = most_less > 0 ? 63 / most_less : 0;
  const float scale = put_half(most_scale / 63, to);
  const float less = put_half(most_less / 63, to + 2);
  std::byte* const packed = to + 4;
  std::fill_n(packed, 12, std::byte{0});
  for (std::size_t j = 0; j < 8; ++j) {
    const int s = std::min(63, nearest(of_scale * groups[j].scale) & 0xff);
    const int m = std::min(63, nearest(of_less * groups[j].less) & 0xff);
    if (j < 4) {
      packed[j] = static_cast<std::byte>(s);
      packed[4 + j] = static_cast<std::byte>(m);
    } else {
      packed[4 + j] = both(s & 15, m & 15);
      packed[j - 4] |= static_cast<std::byte>(s >> 4 << 6);
      packed[j] |= static_cast<std::byte>(m >> 4 << 6);
    }
    const float own = scale * static_cast<float>(s);
    if (own == 0) continue;
    const float own_less = less * static_cast<float>(m);
    for (std::size_t i = 32 * j; i < 32 * (j + 1); ++i) {
      codes[i] = std::clamp(nearest((x[i] + own_less) / own), 0, search.most);
    }
  }
  return codes;
}

void write_q4_k(Numbers<256> x, std::byte* to) {
  const std::array<int, 256> codes = six_bit_groups(x, {15, -1.0F, 20}, to);
  for (std::size_t i = 0; i < 128; ++i) {
    const std::size_t first = i / 32 * 64 + i % 32;
    to[16 + i] = both(codes[first], codes[first + 32]);
  }
}

void write_q5_k(Numbers<256> x, std::byte* to) {
  const std::array<int, 256> codes = six_bit_groups(x, {31, -0.5F, 15}, to);
  for (std::size_t i = 0; i < 32; ++i) {
    int fifths = 0;
    for (std::size_t j = 0; j < 8; ++j) fifths |= codes[32 * j + i] >> 4 << j;
    to[16 + i] = static_cast<std::byte>(fifths);
  }
  for (std::size_t i = 0; i < 128; ++i) {
    const std::size_t first = i / 32 * 64 + i % 32;
    to[48 + i] = both(codes[first] & 15, codes[first + 32] & 15);
  }
}

/// Below it a group counts as zeros.
constexpr float nothing = 1e-15F;

/// x ≈ scale · (code - 32), codes from 0 to 63: the best of inverse scales about the one that makes
/// the extreme number the first code. Squares are weighted by squares.
float fit_signed_group(Numbers<16> x, int* codes) {
  const float most = extreme(x);
  std::fill_n(codes, 16, 0);
  if (std::abs(most) < nothing) return 0;
  const auto code_of = [&](float inverted, std::size_t i) {
    return std::clamp(nearest(inverted * x[i]), -32, 31);
  };
  struct Sums {
    float xl = 0;
    float l2 = 0;
  };
  const auto sums_of = [&](float inverted) {
    Sums sums;
    for (std::size_t i = 0; i < 16; ++i) {
      const auto l = static_cast<float>(code_of(inverted, i));
      const float w = x[i] * x[i];
      sums.xl += w * x[i] * l;
      sums.l2 += w * l * l;
    }
    return sums;
  };
  const auto take = [&](float inverted) {
    for (std::size_t i = 0; i < 16; ++i) codes[i] = code_of(inverted, i) + 32;
  };
  const float first = -32 / most;
  take(first);
  const Sums of_first = sums_of(first);
  float scale = of_first.l2 != 0 ? of_first.xl / of_first.l2 : 0;
  float best = scale * of_first.xl;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float inverted = -(32 + 0.1F * static_cast<float>(step)) / most;
    const Sums sums = sums_of(inverted);
    if (!(sums.l2 > 0 && sums.xl * sums.xl > best * sums.l2)) continue;
    take(inverted);
    scale = sums.xl / sums.l2;
    best = scale * sums.xl;
  }
  return scale;
}

void write_q6_k(Numbers<256> x, std::byte* to) {
  std::array<int, 256> codes;
  std::array<float, 16> scales;
  for (std::size_t j = 0; j < 16; ++j) {
    scales[j] = fit_signed_group(Numbers<16>(x.data() + 16 * j, 16), codes.data() + 16 * j);
  }
  const float most = extreme(scales);
  std::fill_n(to, 210, std::byte{0});
  if (std::abs(most) < nothing) return;
  const float inverted = -128 / most;
  const float scale = put_half(1 / inverted, to + 208);
  for (std::size_t j = 0; j < 16; ++j) {
    const int step = std::min(127, nearest(inverted * scales[j]));
    to[192 + j] = static_cast<std::byte>(step);
    const float own = scale * static_cast<float>(static_cast<std::int8_t>(step));
    if (own == 0) continue;
    for (std::size_t i = 16 * j; i < 16 * (j + 1); ++i) {
      codes[i] = std::clamp(nearest(x[i] / own), -32, 31) + 32;
    }
  }
  for (std::size_t part = 0; part < 2; ++part) {
    const int* const from = codes.data() + 128 * part;
    for (std::size_t i = 0; i < 64; ++i) {
      to[64 * part + i] = both(from[i] & 15, from[64 + i] & 15);
    }
    for (std::size_t i = 0; i < 32; ++i) {
      to[128 + 32 * part + i] = static_cast<std::byte>(
          from[i] >> 4 | from[32 + i] >> 4 << 2 | from[64 + i] >> 4 << 4 | from[96 + i] >> 4 << 6);
    }
  }
}

template <auto write_block, std::size_t elements>
void write_all(std::span<const float> numbers, std::size_t bytes, std::byte* to) {
  for (std::size_t i = 0; i < numbers.size(); i += elements, to += bytes) {
    write_block(Numbers<elements>(numbers.data() + i, elements), to);
  }
}

}  // namespace

bool can_write_blocks(DType dtype) {
  constexpr std::array types{DType::FP32, DType::FP16, DType::BF16, DType::Q8_0, DType::Q4_0,
                             DType::Q5_0, DType::Q5_1, DType::Q4_K, DType::Q5_K, DType::Q6_K};
  return std::find(types.begin(), types.end(), dtype) != types.end();
}

void write_blocks(DType dtype, std::span<const float> numbers, std::span<std::byte> blocks) {
  const auto elements = static_cast<std::size_t>(width(dtype).block_elements);
  const auto bytes = static_cast<std::size_t>(width(dtype).block_bits) / 8;
  KVCAST_ASSERT(numbers.size() % elements == 0 &&
                blocks.size() == numbers.size() / elements * bytes);
  std::byte* const to = blocks.data();
  switch (dtype) {
    case DType::FP32: std::memcpy(to, numbers.data(), blocks.size()); return;
    case DType::FP16:
    case DType::BF16:
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::uint16_t bits =
            dtype == DType::FP16 ? half_bits(numbers[i]) : bf16_bits(numbers[i]);
        std::memcpy(to + 2 * i, &bits, sizeof bits);
      }
      return;
    case DType::Q8_0: return write_all<write_q8_0, 32>(numbers, bytes, to);
    case DType::Q4_0: return write_all<write_q4_0, 32>(numbers, bytes, to);
    case DType::Q5_0: return write_all<write_q5_0, 32>(numbers, bytes, to);
    case DType::Q5_1: return write_all<write_q5_1, 32>(numbers, bytes, to);
    case DType::Q4_K: return write_all<write_q4_k, 256>(numbers, bytes, to);
    case DType::Q5_K: return write_all<write_q5_k, 256>(numbers, bytes, to);
    default: break;
  }
  KVCAST_ASSERT(dtype == DType::Q6_K);
  write_all<write_q6_k, 256>(numbers, bytes, to);
}

}  // namespace kvcast
