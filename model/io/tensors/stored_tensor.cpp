#include "model/io/tensors/stored_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/io/tensors/four_bit_numbers.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/packed_weight.h"

namespace kvcast {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoint files are little-endian");

constexpr std::size_t chunk = 4096;  // elements converted and checked while they are in the cache

/// Stored numbers may lie on any address.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Exact for every half, without a branch, so that loops over it become vector code.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t special = normal + (112u << 23);  // exponent 31 to 255: infinities and NaN
  const std::uint32_t large = magnitude < 0x7c00u ? normal : special;
  return std::bit_cast<float>(sign | (magnitude < 0x0400u ? subnormal : large));
}

float load_half(const std::byte* from) { return half_to_float(load<std::uint16_t>(from)); }

/// Unsigned number of a byte, its low and its high four bits.
int whole(std::byte b) { return std::to_integer<int>(b); }
int low(std::byte b) { return whole(b) & 15; }
int high(std::byte b) { return whole(b) >> 4; }

/// scale · q, 32 elements: half scale, 32 signed bytes.
void read_q8_0(const std::byte* block, float* out) {
  const float scale = load_half(block);
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(load<std::int8_t>(block + 2 + i));
  }
}

/// scale · (q - 8), 32 elements: half scale, 16 bytes with elements i and i + 16.
void read_q4_0(const std::byte* block, float* out) {
  const float scale = load_half(block);
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low(block[2 + i]) - 8);
    out[i + 16] = scale * static_cast<float>(high(block[2 + i]) - 8);
  }
}

/// scale · q + minimum, 32 elements: half scale, half minimum, 16 bytes as in Q4_0.
void read_q4_1(const std::byte* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low(block[4 + i])) + minimum;
    out[i + 16] = scale * static_cast<float>(high(block[4 + i])) + minimum;
  }
}

/// The 32 five-bit numbers of Q5_0 and Q5_1: a word with the fifth bits, 16 bytes as in Q4_0.
std::array<int, 32> five_bits(const std::byte* from) {
  const auto fifths = load<std::uint32_t>(from);
  std::array<int, 32> numbers;
  for (std::size_t i = 0; i < 16; ++i) {
    numbers[i] = low(from[4 + i]) | static_cast<int>(fifths >> i & 1) << 4;
    numbers[i + 16] = high(from[4 + i]) | static_cast<int>(fifths >> (i + 16) & 1) << 4;
  }
  return numbers;
}

/// scale · (q - 16), 32 elements: half scale, 20 bytes of numbers.
void read_q5_0(const std::byte* block, float* out) {
  const float scale = load_half(block);
  const std::array<int, 32> q = five_bits(block + 2);
  for (std::size_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(q[i] - 16);
}

/// scale · q + minimum, 32 elements: half scale, half minimum, 20 bytes of numbers.
void read_q5_1(const std::byte* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  const std::array<int, 32> q = five_bits(block + 4);
  for (std::size_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(q[i]) + minimum;
}

/// scale · number, 32 elements whose codes lie in 16 bytes as in Q4_0.
void read_codes(float scale, const std::array<float, 16>& numbers, const std::byte* codes,
                float* out) {
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = scale * numbers[static_cast<std::size_t>(low(codes[i]))];
    out[i + 16] = scale * numbers[static_cast<std::size_t>(high(codes[i]))];
  }
}

/// 2^(e - 127) · number: the byte e, 16 bytes of codes.
void read_mxfp4(const std::byte* block, float* out) {
  read_codes(std::ldexp(1.0F, whole(block[0]) - 127), fp4_numbers, block + 1, out);
}

/// Half scale, 16 bytes of codes.
void read_iq4_nl(const std::byte* block, float* out) {
  read_codes(load_half(block), iq4_numbers, block + 2, out);
}

/// scale · (s_j - 32), 256 elements in 8 groups j of 32: half scale, a word with the upper two bits
/// of each s_j, 4 bytes with the lower four, 16 bytes of codes for each group.
void read_iq4_xs(const std::byte* block, float* out) {
  const float scale = load_half(block);
  const int upper = load<std::uint16_t>(block + 2);
  for (std::size_t j = 0; j < 8; ++j) {
    const std::byte both = block[4 + j / 2];
    const int lower = j % 2 == 0 ? low(both) : high(both);
    const int step = lower | (upper >> 2 * j & 3) << 4;
    read_codes(scale * static_cast<float>(step - 32), iq4_numbers, block + 8 + 16 * j,
               out + 32 * j);
  }
}

/// (scale · s_j) · q - (minimum · m_j), 256 elements in 16 groups j of 16: 16 bytes with s_j in the
/// low and m_j in the high bits, 64 bytes of two-bit q, half scale, half minimum. Each half of 128
/// elements is four rows of 32 that share 32 bytes, the first in their lowest bits.
void read_q2_k(const std::byte* block, float* out) {
  const float scale = load_half(block + 80);
  const float minimum = load_half(block + 82);
  for (std::size_t j = 0; j < 16; ++j) {
    const std::byte* q = block + 16 + 32 * (j / 8) + 16 * (j % 2);
    const int shift = static_cast<int>(j % 8 / 2) * 2;
    const float group_scale = scale * static_cast<float>(low(block[j]));
    const float less = minimum * static_cast<float>(high(block[j]));
    for (std::size_t i = 0; i < 16; ++i) {
      out[16 * j + i] = group_scale * static_cast<float>(whole(q[i]) >> shift & 3) - less;
    }
  }
}

/// (scale · (s_j - 32)) · (q - 4), 256 elements in 16 groups j of 16: 32 bytes with the third bits
/// of q, row r's in bit r, 64 bytes with the lower two as in Q2_K, 12 bytes of s_j, half scale. The
/// lower four bits of s_j and s_(j+8) share bytes 0-7, the upper two of s_j, s_(j+4) ... bytes
/// 8-11.
void read_q3_k(const std::byte* block, float* out) {
  const float scale = load_half(block + 108);
  const std::byte* steps = block + 96;
  for (std::size_t j = 0; j < 16; ++j) {
    const int lower = j < 8 ? low(steps[j]) : high(steps[j - 8]);
    const int step = lower | (whole(steps[8 + j % 4]) >> 2 * (j / 4) & 3) << 4;
    const float group_scale = scale * static_cast<float>(step - 32);
    const std::byte* thirds = block + 16 * (j % 2);
    const std::byte* q = block + 32 + 32 * (j / 8) + 16 * (j % 2);
    const int shift = static_cast<int>(j % 8 / 2) * 2;
    for (std::size_t i = 0; i < 16; ++i) {
      const int number = (whole(q[i]) >> shift & 3) | (whole(thirds[i]) >> j / 2 & 1) << 2;
      out[16 * j + i] = group_scale * static_cast<float>(number - 4);
    }
  }
}

/// What the 8 groups of 32 elements of Q4_K and Q5_K are scaled by and less.
struct GroupScales {
  std::array<float, 8> scales;
  std::array<float, 8> minima;
};

/// Half scale, half minimum, 12 bytes with the 6-bit s_0 ... s_7 and m_0 ... m_7. Of the 12, bytes
/// 0-3 hold s_0 ... s_3, bytes 4-7 m_0 ... m_3, both in their low six bits; the two bits above them
/// are the upper bits of s_4 ... s_7 and m_4 ... m_7, whose lower four share bytes 8-11.
GroupScales group_scales(const std::byte* block) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  const std::byte* packed = block + 4;
  GroupScales result;
  auto& [scales, minima] = result;
  for (std::size_t j = 0; j < 4; ++j) {
    scales[j] = scale * static_cast<float>(whole(packed[j]) & 63);
    minima[j] = minimum * static_cast<float>(whole(packed[4 + j]) & 63);
    const int upper_scale = whole(packed[j]) >> 6 << 4;
    const int upper_minimum = whole(packed[4 + j]) >> 6 << 4;
    scales[4 + j] = scale * static_cast<float>(low(packed[8 + j]) | upper_scale);
    minima[4 + j] = minimum * static_cast<float>(high(packed[8 + j]) | upper_minimum);
  }
  return result;
}

/// (scale · s_j) · q - (minimum · m_j), 256 elements in 8 groups j of 32: 16 bytes of scales, then
/// 32 bytes for each pair of groups.
void read_q4_k(const std::byte* block, float* out) {
  const auto [scales, minima] = group_scales(block);
  for (std::size_t pair = 0; pair < 4; ++pair) {
    const std::byte* q = block + 16 + 32 * pair;
    float* group = out + 64 * pair;
    for (std::size_t i = 0; i < 32; ++i) {
      group[i] = scales[2 * pair] * static_cast<float>(low(q[i])) - minima[2 * pair];
      group[32 + i] = scales[2 * pair + 1] * static_cast<float>(high(q[i])) - minima[2 * pair + 1];
    }
  }
}

/// The same with 32 bytes before those of the pairs: byte i has the fifth bits of elements i of all
/// groups, group j's in bit j.
void read_q5_k(const std::byte* block, float* out) {
  const auto [scales, minima] = group_scales(block);
  const std::byte* fifths = block + 16;
  for (std::size_t j = 0; j < 8; ++j) {
    const std::byte* q = block + 48 + 32 * (j / 2);
    for (std::size_t i = 0; i < 32; ++i) {
      const int lower = j % 2 == 0 ? low(q[i]) : high(q[i]);
      const int number = lower | (whole(fifths[i]) >> j & 1) << 4;
      out[32 * j + i] = scales[j] * static_cast<float>(number) - minima[j];
    }
  }
}

/// (scale · s_j) · (q - 32), 256 elements in 16 groups j of 16: 128 bytes with the low four bits of
/// q, 64 bytes with its upper two, 16 signed bytes s_j, half scale. Each half of 128 elements is
/// four rows of 32: rows 0, 1 lie in the low and rows 2, 3 in the high bits of 64 bytes, and the
/// upper two bits of all four rows share 32 bytes.
void read_q6_k(const std::byte* block, float* out) {
  const float scale = load_half(block + 208);
  for (std::size_t part = 0; part < 2; ++part) {
    const std::byte* lower = block + 64 * part;
    const std::byte* upper = block + 128 + 32 * part;
    for (std::size_t group = 0; group < 8; ++group) {
      const std::size_t row = group / 2;
      const auto step = load<std::int8_t>(block + 192 + 8 * part + group);
      const float group_scale = scale * static_cast<float>(step);
      const std::byte* bits = lower + 32 * (row % 2) + 16 * (group % 2);
      const std::byte* more = upper + 16 * (group % 2);
      const int shift = row < 2 ? 0 : 4;
      const int more_shift = 2 * static_cast<int>(row);
      float* to = out + 128 * part + 16 * group;
      for (std::size_t i = 0; i < 16; ++i) {
        const int q = (whole(bits[i]) >> shift & 15) | (whole(more[i]) >> more_shift & 3) << 4;
        to[i] = group_scale * static_cast<float>(q - 32);
      }
    }
  }
}

template <auto read_block>
void convert_blocks(const DTypeWidth& block, const std::byte* from, std::span<float> out) {
  const auto elements = static_cast<std::size_t>(block.block_elements);
  const auto bytes = static_cast<std::size_t>(block.block_bits) / 8;
  for (std::size_t i = 0; i < out.size(); i += elements, from += bytes) {
    read_block(from, out.data() + i);
  }
}

void convert(DType dtype, const std::byte* from, std::span<float> out) {
  const DTypeWidth& block = width(dtype);
  switch (dtype) {
    case DType::FP32: std::memcpy(out.data(), from, out.size_bytes()); return;
    case DType::FP16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_half(from + 2 * i);
      return;
    case DType::BF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(from + 2 * i)} << 16);
      }
      return;
    case DType::Q8_0: convert_blocks<read_q8_0>(block, from, out); return;
    case DType::Q4_0: convert_blocks<read_q4_0>(block, from, out); return;
    case DType::Q4_1: convert_blocks<read_q4_1>(block, from, out); return;
    case DType::Q5_0: convert_blocks<read_q5_0>(block, from, out); return;
    case DType::Q5_1: convert_blocks<read_q5_1>(block, from, out); return;
    case DType::Q2_K: convert_blocks<read_q2_k>(block, from, out); return;
    case DType::Q3_K: convert_blocks<read_q3_k>(block, from, out); return;
    case DType::IQ4_NL: convert_blocks<read_iq4_nl>(block, from, out); return;
    case DType::IQ4_XS: convert_blocks<read_iq4_xs>(block, from, out); return;
    case DType::Q4_K: convert_blocks<read_q4_k>(block, from, out); return;
    case DType::Q5_K: convert_blocks<read_q5_k>(block, from, out); return;
    case DType::Q6_K: convert_blocks<read_q6_k>(block, from, out); return;
    case DType::MXFP4: convert_blocks<read_mxfp4>(block, from, out); return;
    case DType::FP64:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(load<double>(from + 8 * i));
      }
      return;
    default: break;
  }
  constexpr bool files_have_this_dtype = false;
  KVCAST_ASSERT(files_have_this_dtype);
}

void convert(DType dtype, const std::byte* from, std::span<double> out) {
  if (dtype == DType::FP64) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  std::array<float, chunk> floats;
  const std::span<float> part = std::span<float>(floats).first(out.size());
  convert(dtype, from, part);
  std::copy(part.begin(), part.end(), out.begin());
}

void convert_packed(const PackedWeight& weight, std::uint64_t first, std::span<float> out) {
  read_packed(weight, first, out);
}

void convert_packed(const PackedWeight& weight, std::uint64_t first, std::span<double> out) {
  std::array<float, chunk> floats;
  const std::span<float> part = std::span<float>(floats).first(out.size());
  read_packed(weight, first, part);
  std::copy(part.begin(), part.end(), out.begin());
}

/// The exponent's bits, all set in NaN and infinities.
template <typename N>
constexpr auto exponent_bits(N value) {
  using Bits = std::conditional_t<sizeof(N) == 4, std::uint32_t, std::uint64_t>;
  static_assert(std::numeric_limits<N>::is_iec559);
  return std::bit_cast<Bits>(value) & std::bit_cast<Bits>(std::numeric_limits<N>::infinity());
}

template <typename N>
constexpr auto no_number = exponent_bits(std::numeric_limits<N>::infinity());

template <typename N>
bool all_finite(std::span<const N> values) {
  auto worst = exponent_bits(N{0});
  for (const N value : values) worst = std::max(worst, exponent_bits(value));
  return worst != no_number<N>;
}

template <typename N>
void read_converted(const StoredTensor& tensor, std::uint64_t first, std::span<N> out) {
  const DType dtype = tensor.readable_dtype();
  const DTypeWidth& block = width(dtype);
  const auto elements = static_cast<std::uint64_t>(block.block_elements);
  const std::uint64_t block_bytes = static_cast<std::uint64_t>(block.block_bits) / 8;
  KVCAST_ASSERT(tensor.packed || (first % elements == 0 && out.size() % elements == 0));
  const std::uint64_t stored =
      tensor.packed ? tensor.elements() : tensor.bytes.size() / block_bytes * elements;
  KVCAST_ASSERT(first <= stored && out.size() <= stored - first);

  for (std::size_t begin = 0; begin < out.size(); begin += chunk) {
    const std::span<N> part = out.subspan(begin, std::min(chunk, out.size() - begin));
    if (tensor.packed) {
      convert_packed(*tensor.packed, first + begin, part);
    } else {
      convert(dtype, tensor.bytes.data() + (first + begin) / elements * block_bytes, part);
    }
    if (all_finite<N>(part)) continue;
    const auto bad = std::find_if(part.begin(), part.end(),
                                  [](N value) { return exponent_bits(value) == no_number<N>; });
    const std::uint64_t index = first + begin + static_cast<std::uint64_t>(bad - part.begin());
    throw Error(tensor.place() + ", element " + std::to_string(index),
                *bad != *bad ? "NaN" : "an infinity", "finite weights");
  }
}

/// Where the halves of a block lie that scale its numbers; of plain halves all numbers.
std::vector<std::size_t> halves_of(DType dtype) {
  switch (dtype) {
    case DType::FP16:
    case DType::Q8_0:
    case DType::Q4_0:
    case DType::Q5_0:
    case DType::IQ4_NL:
    case DType::IQ4_XS: return {0};
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K: return {0, 2};
    case DType::Q2_K: return {80, 82};
    case DType::Q3_K: return {108};
    case DType::Q6_K: return {208};
    default: return {};
  }
}

/// Of larger ones, numbers of MXFP4 may be too large for fp32: 6 · 2^(253 - 127) is.
constexpr int largest_exponent = 252;

/// Blocks that begin with an fp32 scale; those of `fp8` have its codes behind it.
bool has_finite_scaled(std::span<const std::byte> blocks, std::size_t step, bool fp8) {
  // fp8 reaches 448, and codes less a zero 15.
  constexpr float most = std::numeric_limits<float>::max() / 512;
  for (std::size_t at = 0; at < blocks.size(); at += step) {
    if (!(std::abs(load<float>(&blocks[at])) < most)) return false;
    if (!fp8) continue;
    int no_number = 0;
    for (std::size_t i = sizeof(float); i < step; ++i) {
      no_number |= (whole(blocks[at + i]) & 0x7f) == 0x7f ? 1 : 0;
    }
    if (no_number != 0) return false;
  }
  return true;
}

/// True only where all numbers of these blocks are finite: they are where their scales are.
bool has_finite_numbers(DType dtype, std::span<const std::byte> blocks) {
  const std::size_t step = row_block(dtype).bytes;
  const auto worst = [&](std::size_t at) {
    std::uint16_t most = 0;
    for (; at < blocks.size(); at += step) {
      most = std::max<std::uint16_t>(most, load<std::uint16_t>(&blocks[at]) & 0x7fffu);
    }
    return most;
  };
  if (dtype == DType::BF16) return worst(0) < 0x7f80u;
  if (dtype == DType::MXFP4) {
    int most = 0;
    for (std::size_t at = 0; at < blocks.size(); at += step)
      most = std::max(most, whole(blocks[at]));
    return most <= largest_exponent;
  }
  switch (dtype) {
    case DType::FP8: return has_finite_scaled(blocks, step, true);
    case DType::INT4_G32:
    case DType::INT4_G64:
    case DType::INT4_G128: return has_finite_scaled(blocks, step, false);
    default: break;
  }
  const std::vector<std::size_t> halves = halves_of(dtype);
  KVCAST_ASSERT(!halves.empty());
  return std::all_of(halves.begin(), halves.end(),
                     [&](std::size_t at) { return worst(at) < 0x7c00u; });
}

}  // namespace

std::uint64_t StoredTensor::elements() const {
  // However large the other extents claim to be.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product = checked_multiply(product, extent);
  return product;
}

std::string StoredTensor::place() const {
  return (file ? file->path() + ": " : std::string()) + "tensor " + shortened(name);
}

DType StoredTensor::readable_dtype() const {
  if (!dtype) throw Error(place(), "element type " + type, "a type that kvcast reads");
  return *dtype;
}

std::string shortened(std::string_view text) {
  return text.size() <= 80 ? std::string(text) : std::string(text.substr(0, 77)) + "...";
}

void read_elements(const StoredTensor& tensor, std::uint64_t first, std::span<float> out) {
  read_converted(tensor, first, out);
}

void read_elements(const StoredTensor& tensor, std::uint64_t first, std::span<double> out) {
  read_converted(tensor, first, out);
}

RowBlock row_block(DType dtype) {
  switch (dtype) {
    case DType::FP8: return {128, 4 + 128};
    case DType::INT4_G32: return {32, 4 + 16};
    case DType::INT4_G64: return {64, 4 + 32};
    case DType::INT4_G128: return {128, 4 + 64};
    default: break;
  }
  const DTypeWidth& block = width(dtype);
  return {static_cast<std::uint64_t>(block.block_elements),
          static_cast<std::uint64_t>(block.block_bits) / 8};
}

std::uint64_t row_bytes(DType dtype, std::uint64_t elements) {
  const RowBlock block = row_block(dtype);
  return (elements + block.elements - 1) / block.elements * block.bytes;
}

void read_blocks(const StoredTensor& tensor, std::uint64_t first, std::span<std::byte> out) {
  const DType dtype = tensor.readable_dtype();
  const auto [elements, block_bytes] = row_block(dtype);
  KVCAST_ASSERT(out.size() % block_bytes == 0);
  std::uint64_t count = out.size() / block_bytes * elements;
  if (tensor.packed) {
    const std::uint64_t in_row = first % tensor.packed->in;
    KVCAST_ASSERT(in_row % elements == 0 && first < tensor.elements());
    count = std::min(count, tensor.packed->in - in_row);
    read_packed_blocks(*tensor.packed, {elements, block_bytes}, first, out);
  } else {
    KVCAST_ASSERT(first % elements == 0);
    const std::uint64_t begin = first / elements * block_bytes;
    KVCAST_ASSERT(begin <= tensor.bytes.size() && out.size() <= tensor.bytes.size() - begin);
    std::memcpy(out.data(), tensor.bytes.data() + begin, out.size());
  }
  if (has_finite_numbers(dtype, out)) return;
  std::vector<float> numbers(count);
  read_elements(tensor, first, std::span(numbers));  // says which one is not
}

}  // namespace kvcast
