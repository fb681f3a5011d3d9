#include "model/io/tensors/packed_weight.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/io/tensors/four_bit_numbers.h"

namespace kvcast {
namespace {

constexpr std::uint64_t fp4_block = 32;
/// Codes of a word, and where those of Order::Outputs lie in it.
constexpr std::uint64_t of_word = 8;
constexpr std::array<std::uint32_t, of_word> output_places{0, 4, 1, 5, 2, 6, 3, 7};

std::uint64_t divided_up(std::uint64_t n, std::uint64_t by) { return n / by + (n % by != 0); }

using Shape = std::vector<std::uint64_t>;

[[noreturn]] void fail_shape(const StoredTensor& t, const std::string& expected) {
  throw Error(t.place(), fmt::format("shape [{}]", fmt::join(t.shape, ", ")), expected);
}

void check_shape(const StoredTensor& t, const Shape& expected) {
  if (t.shape != expected) fail_shape(t, fmt::format("[{}]", fmt::join(expected, ", ")));
}

void check_type(const StoredTensor& t, std::string_view expected) {
  if (t.type != expected) throw Error(t.place(), "element type " + t.type, expected);
}

/// Of scales: F32, BF16 or F16.
void check_is_number(const StoredTensor& t) {
  const bool is_one = t.dtype == DType::FP32 || t.dtype == DType::BF16 || t.dtype == DType::FP16;
  if (!is_one) throw Error(t.place(), "element type " + t.type, "F32, BF16 or F16");
}

float number_at(const StoredTensor& t, std::uint64_t index) {
  float number = 0;
  read_elements(t, index, std::span(&number, 1));
  return number;
}

std::uint32_t word_at(const StoredTensor& t, std::uint64_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, t.bytes.data() + 4 * index, sizeof word);
  return word;
}

/// The finite number of a code below 0x7f, of its absolute value.
constexpr float e4m3_magnitude(int code) {
  const int exponent = code >> 3;
  float number = static_cast<float>((exponent > 0 ? 8 : 0) + (code & 7));
  for (int e = 10; e > std::max(exponent, 1); --e) number /= 2;
  for (int e = 10; e < exponent; ++e) number *= 2;
  return number;
}

constexpr std::array<float, 256> e4m3_numbers = [] {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 128; ++code) {
    const float number =
        code == 127 ? std::numeric_limits<float>::quiet_NaN() : e4m3_magnitude(code);
    numbers[static_cast<std::size_t>(code)] = number;
    numbers[static_cast<std::size_t>(code + 128)] = -number;
  }
  return numbers;
}();

float scale_of(const Fp8Weight& w, std::uint64_t in, std::uint64_t o, std::uint64_t i) {
  return number_at(w.scales, o / w.rows * divided_up(in, w.columns) + i / w.columns);
}

// For each form: read_run and pack_run, for numbers i ... i + n - 1 of output `o`.

void read_run(const Fp8Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::span<float> out) {
  const std::byte* const codes = w.codes.bytes.data() + o * p.in;
  for (std::size_t done = 0; done < out.size();) {
    const std::uint64_t at = i + done;
    const std::size_t n = std::min<std::uint64_t>(out.size() - done, w.columns - at % w.columns);
    const float scale = scale_of(w, p.in, o, at);
    for (std::size_t k = 0; k < n; ++k) {
      out[done + k] = scale * e4m3_numbers[std::to_integer<std::size_t>(codes[at + k])];
    }
    done += n;
  }
}

void pack_run(const Fp8Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::size_t n, std::byte* out) {
  const RowBlock block = row_block(DType::FP8);
  for (std::uint64_t done = 0; done < n; done += block.elements, out += block.bytes) {
    const float scale = scale_of(w, p.in, o, i + done);
    std::memcpy(out, &scale, sizeof scale);
    std::memcpy(out + sizeof scale, w.codes.bytes.data() + o * p.in + i + done,
                std::min(block.elements, n - done));
  }
}

/// Code j of block b.
std::size_t fp4_code(const Fp4Weight& w, std::uint64_t b, std::uint64_t j) {
  const auto both = std::to_integer<std::size_t>(w.blocks.bytes[16 * b + j / 2]);
  return j % 2 == 0 ? both & 15u : both >> 4;
}

void read_run(const Fp4Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::span<float> out) {
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::uint64_t b = (o * p.in + i + k) / fp4_block;
    const float scale = std::ldexp(1.0F, std::to_integer<int>(w.scales.bytes[b]) - 127);
    out[k] = scale * fp4_numbers[fp4_code(w, b, (i + k) % fp4_block)];
  }
}

void pack_run(const Fp4Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::size_t n, std::byte* out) {
  for (std::uint64_t b = (o * p.in + i) / fp4_block; b < (o * p.in + i + n) / fp4_block; ++b) {
    *out++ = w.scales.bytes[b];
    for (std::uint64_t j = 0; j < fp4_block / 2; ++j) {
      *out++ = static_cast<std::byte>(fp4_code(w, b, j) | fp4_code(w, b, j + 16) << 4);
    }
  }
}

std::uint32_t int4_code(const Int4Weight& w, const PackedWeight& p, std::uint64_t o,
                        std::uint64_t i) {
  switch (w.order) {
    case Int4Weight::Order::Inputs:
      return word_at(w.codes, i / of_word * p.out + o) >> 4 * (i % of_word) & 15u;
    case Int4Weight::Order::Outputs:
      return word_at(w.codes, (i * p.out + o) / of_word) >> 4 * output_places[o % of_word] & 15u;
    case Int4Weight::Order::Rows: break;
  }
  return word_at(w.codes, (o * p.in + i) / of_word) >> 4 * (i % of_word) & 15u;
}

struct Int4Group {
  float scale;
  std::uint32_t zero;
};
Int4Group int4_group(const Int4Weight& w, const PackedWeight& p, std::uint64_t o,
                     std::uint64_t group) {
  const std::uint64_t groups = divided_up(p.in, w.group);
  const bool rows = w.order == Int4Weight::Order::Rows;
  const float scale = number_at(w.scales, rows ? o * groups + group : group * p.out + o);
  if (!w.zeros) return {scale, 8};
  const std::uint32_t word = word_at(*w.zeros, (group * p.out + o) / of_word);
  const std::uint64_t place =
      w.order == Int4Weight::Order::Outputs ? output_places[o % of_word] : o % of_word;
  return {scale, ((word >> 4 * place) + w.zero_offset) & 15u};
}

void read_run(const Int4Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::span<float> out) {
  const auto group_of = [&](std::uint64_t at) {
    return w.groups.empty() ? at / w.group : w.groups[at];
  };
  std::uint64_t last = group_of(i);
  Int4Group group = int4_group(w, p, o, last);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::uint64_t own = group_of(i + k);
    if (own != last) group = int4_group(w, p, o, last = own);
    const auto code = static_cast<int>(int4_code(w, p, o, i + k));
    out[k] = group.scale * static_cast<float>(code - static_cast<int>(group.zero));
  }
}

/// The type whose blocks hold such groups; FP32: none. Weights of no whole bytes have none: they
/// could not be counted.
DType int4_type(const Int4Weight& w, std::uint64_t out, std::uint64_t in) {
  if (!w.groups.empty() || w.scales.dtype == DType::FP32) return DType::FP32;
  for (const DType type : {DType::INT4_G128, DType::INT4_G64, DType::INT4_G32}) {
    const bool fits = w.group % row_block(type).elements == 0;
    if (fits && bytes_of(Count(out) * Count(in), type).denominator() == 1) return type;
  }
  return DType::FP32;
}

void pack_run(const Int4Weight& w, const PackedWeight& p, std::uint64_t o, std::uint64_t i,
              std::size_t n, std::byte* out) {
  const RowBlock block = row_block(int4_type(w, p.out, p.in));
  for (std::uint64_t done = 0; done < n; done += block.elements, out += block.bytes) {
    const Int4Group group = int4_group(w, p, o, (i + done) / w.group);
    const std::uint32_t word = std::bit_cast<std::uint32_t>(group.scale) | group.zero;
    std::memcpy(out, &word, sizeof word);
    for (std::uint64_t k = 0; k < std::min(block.elements, n - done); ++k) {
      const std::uint32_t code = int4_code(w, p, o, i + done + k);
      out[4 + k / 32 * 16 + k % 16] |= static_cast<std::byte>(code << (k % 32 < 16 ? 0 : 4));
    }
  }
}

template <typename Form>
StoredTensor as_tensor(std::string name, DType dtype, Shape shape, std::string type,
                       const StoredTensor& codes, Form form) {
  StoredTensor t{std::move(name), dtype,      std::move(shape),
                 codes.bytes,     codes.file, std::move(type)};
  const std::uint64_t in = t.shape.back();
  t.packed = std::make_shared<const PackedWeight>(
      PackedWeight{std::move(form), in == 0 ? 0 : t.elements() / in, in});
  return t;
}

}  // namespace

StoredTensor packed_tensor(std::string name, Fp8Weight w) {
  check_type(w.codes, "F8_E4M3");
  check_is_number(w.scales);
  if (w.codes.shape.size() != 2) fail_shape(w.codes, "two dimensions");
  const std::uint64_t out = w.codes.shape[0];
  const std::uint64_t in = w.codes.shape[1];
  const Shape blocks{divided_up(out, w.rows), divided_up(in, w.columns)};
  Shape scales = w.scales.shape;
  Shape expected = blocks;
  // A number, or one for each output, may have dimensions less or more.
  if (blocks[1] == 1 && (w.rows == 1 || blocks[0] == 1)) {
    std::erase(scales, 1u);
    std::erase(expected, 1u);
  }
  if (scales != expected) fail_shape(w.scales, fmt::format("[{}]", fmt::join(blocks, ", ")));
  const std::uint64_t block = row_block(DType::FP8).elements;
  const bool in_blocks = w.columns >= in || w.columns % block == 0;
  const DType dtype = in_blocks ? DType::FP8 : DType::FP32;
  const StoredTensor codes = w.codes;
  return as_tensor(std::move(name), dtype, codes.shape, codes.type, codes, std::move(w));
}

StoredTensor packed_tensor(std::string name, Fp4Weight w) {
  check_type(w.blocks, "U8");
  check_type(w.scales, "U8");
  Shape shape = w.blocks.shape;
  if (shape.size() < 3 || shape.back() != 16) fail_shape(w.blocks, "[..., 16]");
  shape.pop_back();
  check_shape(w.scales, shape);
  shape.back() = checked_multiply(shape.back(), fp4_block);
  const StoredTensor blocks = w.blocks;
  return as_tensor(std::move(name), DType::MXFP4, shape, "MXFP4", blocks, std::move(w));
}

StoredTensor packed_tensor(std::string name, Int4Weight w) {
  using Order = Int4Weight::Order;
  check_type(w.codes, "I32");
  check_is_number(w.scales);
  if (w.codes.shape.size() != 2) fail_shape(w.codes, "two dimensions");
  const bool rows = w.order == Order::Rows;
  std::uint64_t out = w.codes.shape[rows ? 0 : 1];
  std::uint64_t in = w.codes.shape[rows ? 1 : 0];
  std::uint64_t& packed = w.order == Order::Outputs ? out : in;
  packed = checked_multiply(packed, of_word);
  if (w.group == 0) w.group = std::max<std::uint64_t>(in, 1);  // one group for each output
  const std::uint64_t groups = divided_up(in, w.group);
  check_shape(w.scales, rows ? Shape{out, groups} : Shape{groups, out});
  if (w.zeros) {
    check_type(*w.zeros, "I32");
    if (out % of_word != 0) fail_shape(w.codes, "a multiple of 8 outputs");
    check_shape(*w.zeros, {groups, out / of_word});
  }
  const auto outside =
      std::find_if(w.groups.begin(), w.groups.end(), [&](std::uint32_t g) { return g >= groups; });
  if (outside != w.groups.end()) {
    throw Error(w.codes.place(), fmt::format("an input of group {}", *outside),
                fmt::format("{} groups", groups));
  }
  if (!w.groups.empty() && w.groups.size() != in) {
    throw Error(w.codes.place(), fmt::format("the groups of {} inputs", w.groups.size()),
                fmt::format("of {}", in));
  }
  const bool in_order = std::all_of(w.groups.begin(), w.groups.end(), [&](const std::uint32_t& g) {
    return g == static_cast<std::uint64_t>(&g - w.groups.data()) / w.group;
  });
  if (in_order) w.groups.clear();
  const DType dtype = int4_type(w, out, in);
  const StoredTensor codes = w.codes;
  return as_tensor(std::move(name), dtype, {out, in}, "4-bit groups", codes, std::move(w));
}

std::uint64_t packed_bytes(const PackedWeight& weight) {
  struct Sum {
    std::uint64_t operator()(const Fp8Weight& w) const {
      return w.codes.bytes.size() + w.scales.bytes.size();
    }
    std::uint64_t operator()(const Fp4Weight& w) const {
      return w.blocks.bytes.size() + w.scales.bytes.size();
    }
    std::uint64_t operator()(const Int4Weight& w) const {
      return w.codes.bytes.size() + w.scales.bytes.size() + (w.zeros ? w.zeros->bytes.size() : 0) +
             sizeof(std::uint32_t) * w.groups.size();
    }
  };
  return std::visit(Sum{}, weight.form);
}

void read_packed(const PackedWeight& weight, std::uint64_t first, std::span<float> out) {
  while (!out.empty()) {
    const std::uint64_t i = first % weight.in;
    const std::size_t n = std::min<std::uint64_t>(out.size(), weight.in - i);
    std::visit([&](const auto& w) { read_run(w, weight, first / weight.in, i, out.first(n)); },
               weight.form);
    out = out.subspan(n);
    first += n;
  }
}

void read_packed_blocks(const PackedWeight& weight, const RowBlock& block, std::uint64_t first,
                        std::span<std::byte> out) {
  const std::uint64_t i = first % weight.in;
  const std::size_t n = std::min(out.size() / block.bytes * block.elements, weight.in - i);
  std::fill(out.begin(), out.end(), std::byte{0});
  std::visit([&](const auto& w) { pack_run(w, weight, first / weight.in, i, n, out.data()); },
             weight.form);
}

}  // namespace kvcast
