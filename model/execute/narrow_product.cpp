#include "model/execute/narrow_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#if defined(__x86_64__) && defined(__gnu_linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "model/base/error.h"
#include "model/execute/narrow_vectors.h"

namespace kvcast::execute {
namespace {

std::size_t numbers_in_word(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::BF16 ? 2 : 4;
}

/// Rows that lie a multiple of 2 KiB apart would push each other out of the first-level cache.
std::size_t row_words(Arithmetic arithmetic, std::size_t in) {
  const std::size_t words = round_up(in, narrow_inputs) / numbers_in_word(arithmetic);
  return words % 512 == 0 ? words + 16 : words;
}

KVCAST_VECTOR_CLONES void pairs_of_row(const float* x, std::size_t pairs, std::uint32_t* out) {
  for (std::size_t i = 0; i < pairs; ++i) {
    out[i] = bf16_bits(x[2 * i]) | bf16_bits(x[2 * i + 1]) << 16;
  }
}

KVCAST_VECTOR_CLONES int sum_of(const std::int8_t* x, std::size_t n) {
  int sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

#if defined(__x86_64__) && defined(__gnu_linux__)
#define KVCAST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"

using Floats16 = Vector<16>;

template <std::size_t lanes = 16>
KVCAST_INLINE Vector<lanes>& floats_at(float* p) {
  return *reinterpret_cast<Vector<lanes>*>(p);
}
template <std::size_t lanes = 16>
KVCAST_INLINE Vector<lanes> floats_at(const float* p) {
  return *reinterpret_cast<const Vector<lanes>*>(p);
}

constexpr std::size_t strips = narrow_outputs / 16;
/// Rows of a tile of sums in registers.
constexpr std::size_t vector_rows = 6;

// Loops are unrolled by name, as sums have to be named to stay in registers.

KVCAST_INLINE void add_words(Floats16& sums, Whole<16> strip, Whole<16> row) {
  add_pairs(sums, strip, row);
}
KVCAST_INLINE void add_words(Whole<16>& sums, Whole<16> strip, Whole<16> row) {
  add_quads(sums, strip, row);
}

/// sums[row][strip][16] += word w of the part's inputs.
template <std::size_t rows, typename Sums>
KVCAST_INLINE void add_word(const NarrowProduct& p, std::size_t row, std::size_t w,
                            Sums (&sums)[rows][strips]) {
  const std::uint32_t* const a = p.rows.words(p.first_row + row, p.first_in) + w;
  Whole<16> strip[strips];
#pragma GCC unroll 6
  for (std::size_t s = 0; s < strips; ++s) {
    strip[s] = *reinterpret_cast<const Whole<16>*>(p.panel.strips[s] + 16 * w);
  }
#pragma GCC unroll 6
  for (std::size_t r = 0; r < rows; ++r) {
    const Whole<16> word = in_all_lanes<16>(a[r * p.rows.stride()]);
#pragma GCC unroll 6
    for (std::size_t s = 0; s < strips; ++s) add_words(sums[r][s], strip[s], word);
  }
}

template <std::size_t rows>
KVCAST_INLINE void vectors_bf16(const NarrowProduct& p, std::size_t row) {
  Floats16 sums[rows][strips];
  float* const c = p.sums + row * narrow_outputs;
#pragma GCC unroll 6
  for (std::size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 6
    for (std::size_t s = 0; s < strips; ++s) {
      sums[r][s] = p.accumulate ? floats_at(c + r * narrow_outputs + 16 * s) : Floats16{};
    }
  }
  for (std::size_t w = 0; w < p.count_in / 2; ++w) {
    add_word<rows>(p, row, w, sums);
  }
#pragma GCC unroll 6
  for (std::size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 6
    for (std::size_t s = 0; s < strips; ++s) {
      floats_at(c + r * narrow_outputs + 16 * s) = sums[r][s];
    }
  }
}

/// Adds a group's whole numbers of a strip's outputs and a row to its sums.
template <std::size_t lanes>
KVCAST_INLINE void add_group(Whole<lanes> whole, Vector<lanes> row_scale, Vector<lanes> row_sum,
                             Vector<lanes> scales, Vector<lanes> minimums, bool accumulate,
                             float* c) {
  Vector<lanes> sums = accumulate ? floats_at<lanes>(c) : Vector<lanes>{};
  add_product<lanes>(sums, minimums, row_sum);
  add_product<lanes>(sums, __builtin_convertvector(whole, Vector<lanes>), scales * row_scale);
  floats_at<lanes>(c) = sums;
}

template <std::size_t rows>
KVCAST_INLINE void vectors_int8(const NarrowProduct& p, std::size_t row) {
  const std::size_t group = p.panel.group;
  const std::size_t groups = p.count_in / group;
  for (std::size_t g = 0; g < groups; ++g) {
    Whole<16> sums[rows][strips] = {};
    for (std::size_t w = g * group / 4; w < (g + 1) * group / 4; ++w) {
      add_word<rows>(p, row, w, sums);
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t of_row = p.first_in / group + g;
      const Floats16 scale = in_all_lanes<16>(p.rows.scales(p.first_row + row + r)[of_row]);
      const Floats16 sum = in_all_lanes<16>(p.rows.sums(p.first_row + row + r)[of_row]);
#pragma GCC unroll 6
      for (std::size_t s = 0; s < strips; ++s) {
        const std::size_t at = (s * groups + g) * 16;
        add_group<16>(sums[r][s], scale, sum, floats_at(p.panel.scales + at),
                      floats_at(p.panel.minimums + at), p.accumulate || g > 0,
                      p.sums + (row + r) * narrow_outputs + 16 * s);
      }
    }
  }
}

/// Strips of 8 outputs whose sums stay in registers, with six rows, or four if bytes are wide.
constexpr std::size_t short_strips = 2;

/// sums[row][strip][8] of short_strips strips from `first` on, group by group.
template <std::size_t rows, bool wide>
KVCAST_INLINE void bytes_int8(const NarrowProduct& p, std::size_t row, std::size_t first) {
  // By name, as what is written could be any of p.
  const std::size_t words = p.panel.group / 4;
  const std::size_t groups = p.count_in / p.panel.group;
  const std::size_t row_step = p.rows.stride();
  const std::size_t group_step = p.rows.groups();
  const std::uint32_t* a = p.rows.words(p.first_row + row, p.first_in);
  const float* row_scales = p.rows.scales(p.first_row + row) + p.first_in / p.panel.group;
  const float* row_sums = p.rows.sums(p.first_row + row) + p.first_in / p.panel.group;
  const std::uint32_t* strip[short_strips];
  for (std::size_t s = 0; s < short_strips; ++s) strip[s] = p.panel.strips[first + s];
  const float* const scales = p.panel.scales + first * groups * 8;
  const float* const minimums = p.panel.minimums + first * groups * 8;
  float* const c = p.sums + row * narrow_outputs + 8 * first;
  bool accumulate = p.accumulate;
  for (std::size_t g = 0; g < groups; ++g) {
    Whole<8> sums[rows][short_strips] = {};
    for (std::size_t w = 0; w < words; ++w, ++a) {
      Whole<8> bytes[short_strips];
      Whole<8> sizes[short_strips];
#pragma GCC unroll 2
      for (std::size_t s = 0; s < short_strips; ++s) {
        bytes[s] = *reinterpret_cast<const Whole<8>*>(strip[s]);
        strip[s] += 8;
        if constexpr (!wide) continue;
        bytes[s] ^= static_cast<std::int32_t>(0x80808080u);
        sizes[s] = absolute_bytes(bytes[s]);
      }
#pragma GCC unroll 6
      for (std::size_t r = 0; r < rows; ++r) {
        const Whole<8> word = in_all_lanes<8>(a[r * row_step]);
#pragma GCC unroll 2
        for (std::size_t s = 0; s < short_strips; ++s) {
          if constexpr (wide) {
            add_quads(sums[r][s], bytes[s], sizes[s], word);
          } else {
            add_quads(sums[r][s], bytes[s], word);
          }
        }
      }
    }
    Vector<8> scale[short_strips];
    Vector<8> minimum[short_strips];
#pragma GCC unroll 2
    for (std::size_t s = 0; s < short_strips; ++s) {
      scale[s] = floats_at<8>(scales + (s * groups + g) * 8);
      minimum[s] = floats_at<8>(minimums + (s * groups + g) * 8);
      // Numbers are scale · (signed byte + 128) + minimum.
      if constexpr (wide) minimum[s] += 128 * scale[s];
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < rows; ++r) {
      const Vector<8> row_scale = in_all_lanes<8>(row_scales[r * group_step + g]);
      const Vector<8> row_sum = in_all_lanes<8>(row_sums[r * group_step + g]);
#pragma GCC unroll 2
      for (std::size_t s = 0; s < short_strips; ++s) {
        add_group<8>(sums[r][s], row_scale, row_sum, scale[s], minimum[s], accumulate,
                     c + r * narrow_outputs + 8 * s);
      }
    }
    accumulate = true;
  }
}

template <std::size_t rows, bool wide>
KVCAST_INLINE void byte_rows_of(const NarrowProduct& p, std::size_t row, std::size_t first) {
  for (; row + rows <= p.count; row += rows) bytes_int8<rows, wide>(p, row, first);
  if constexpr (rows > 1) byte_rows_of<rows - 1, wide>(p, row, first);
}

/// The strips that stay in registers stay in the first-level cache for all rows.
__attribute__((target("avx2,fma"))) void multiply_short_vectors(const NarrowProduct& p) {
  for (std::size_t s = 0; s < narrow_outputs / 8; s += short_strips) {
    p.panel.wide ? byte_rows_of<4, true>(p, 0, s) : byte_rows_of<6, false>(p, 0, s);
  }
}

template <std::size_t rows>
KVCAST_INLINE void vector_rows_of(Arithmetic arithmetic, const NarrowProduct& p, std::size_t row) {
  for (; row + rows <= p.count; row += rows) {
    arithmetic == Arithmetic::BF16 ? vectors_bf16<rows>(p, row) : vectors_int8<rows>(p, row);
  }
  if constexpr (rows > 1) vector_rows_of<rows - 1>(arithmetic, p, row);
}

__attribute__((target(KVCAST_AVX512))) void multiply_vectors(Arithmetic arithmetic,
                                                             const NarrowProduct& p) {
  vector_rows_of<vector_rows>(arithmetic, p, 0);
}

/// What a processor with AMX takes for the shapes of its tiles.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(std::size_t tile, std::size_t tile_rows, std::size_t bytes) {
    rows[tile] = static_cast<std::uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

constexpr std::size_t line = 64;  ///< bytes of a tile's row
constexpr std::size_t sum_step = narrow_outputs * sizeof(float);

/// Sums of two tiles of rows, if `two`, and two strips from `s` on stay in tiles 0 to 3.
__attribute__((target("amx-tile,amx-bf16"))) void tiles_bf16(const NarrowProduct& p,
                                                             std::size_t row, bool two,
                                                             std::size_t s) {
  float* const c = p.sums + row * narrow_outputs + 16 * s;
  float* const d = c + narrow_rows * narrow_outputs;
  _tile_zero(2);
  _tile_zero(3);
  if (p.accumulate) {
    _tile_loadd(0, c, sum_step);
    _tile_loadd(1, c + 16, sum_step);
    if (two) {
      _tile_loadd(2, d, sum_step);
      _tile_loadd(3, d + 16, sum_step);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  const std::uint32_t* a = p.rows.words(p.first_row + row, p.first_in);
  const std::size_t step = p.rows.stride() * sizeof(std::uint32_t);
  for (std::size_t w = 0; w < p.count_in / 2; w += 16) {
    _tile_loadd(4, a + w, step);
    _tile_loadd(6, p.panel.strips[s] + 16 * w, line);
    _tile_loadd(7, p.panel.strips[s + 1] + 16 * w, line);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!two) continue;
    _tile_loadd(5, a + narrow_rows * p.rows.stride() + w, step);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, sum_step);
  _tile_stored(1, c + 16, sum_step);
  if (!two) return;
  _tile_stored(2, d, sum_step);
  _tile_stored(3, d + 16, sum_step);
}

__attribute__((target("amx-tile,amx-int8"))) void group_tiles(const NarrowProduct& p,
                                                              std::size_t row, std::size_t word,
                                                              std::int32_t* sums) {
  _tile_loadd(4, p.rows.words(p.first_row + row, p.first_in) + word,
              p.rows.stride() * sizeof(std::uint32_t));
  _tile_loadd(5, p.panel.strips[0] + 16 * word, line);
  _tile_loadd(6, p.panel.strips[1] + 16 * word, line);
  _tile_loadd(7, p.panel.strips[2] + 16 * word, line);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_dpbsud(0, 4, 5);
  _tile_dpbsud(1, 4, 6);
  _tile_dpbsud(2, 4, 7);
  _tile_loadd(5, p.panel.strips[3] + 16 * word, line);
  _tile_dpbsud(3, 4, 5);
  _tile_stored(0, sums, line);
  _tile_stored(1, sums + 256, line);
  _tile_stored(2, sums + 512, line);
  _tile_stored(3, sums + 768, line);
}

/// Adds the whole numbers [strip][row][16] of group g of 16 rows to their sums.
__attribute__((target(KVCAST_AVX512))) void add_groups(const NarrowProduct& p, std::size_t row,
                                                       std::size_t g, const std::int32_t* whole) {
  const std::size_t groups = p.count_in / p.panel.group;
  const std::size_t of_row = p.first_in / p.panel.group + g;
  const std::size_t step = p.rows.groups();
  const float* const row_scales = p.rows.scales(p.first_row + row) + of_row;
  const float* const row_sums = p.rows.sums(p.first_row + row) + of_row;
  const bool accumulate = p.accumulate || g > 0;
  for (std::size_t s = 0; s < strips; ++s) {
    const Floats16 scales = floats_at(p.panel.scales + (s * groups + g) * 16);
    const Floats16 minimums = floats_at(p.panel.minimums + (s * groups + g) * 16);
    for (std::size_t r = 0; r < narrow_rows; ++r) {
      add_group<16>(*reinterpret_cast<const Whole<16>*>(whole + (s * narrow_rows + r) * 16),
                    in_all_lanes<16>(row_scales[r * step]), in_all_lanes<16>(row_sums[r * step]),
                    scales, minimums, accumulate, p.sums + (row + r) * narrow_outputs + 16 * s);
    }
  }
}

__attribute__((target("amx-tile"))) void multiply_tiles(Arithmetic arithmetic,
                                                        const NarrowProduct& p) {
  TileShapes shapes;
  const bool whole = arithmetic == Arithmetic::INT8;
  const std::size_t words = whole ? p.panel.group / 4 : 16;
  for (std::size_t t = 0; t < 4; ++t) shapes.set(t, narrow_rows, line);
  for (std::size_t t = 4; t < 8; ++t) shapes.set(t, words, line);
  shapes.set(4, narrow_rows, 4 * words);
  if (!whole) shapes.set(5, narrow_rows, line);
  _tile_loadconfig(&shapes);
  if (whole) {
    for (std::size_t row = 0; row < p.count; row += narrow_rows) {
      for (std::size_t g = 0; g < p.count_in / p.panel.group; ++g) {
        alignas(64) std::int32_t sums[strips * narrow_rows * 16];
        group_tiles(p, row, g * words, sums);
        add_groups(p, row, g, sums);
      }
    }
  } else {
    for (std::size_t s = 0; s < strips; s += 2) {
      for (std::size_t row = 0; row < p.count; row += 2 * narrow_rows) {
        tiles_bf16(p, row, row + narrow_rows < p.count, s);
      }
    }
  }
  _tile_release();
}

/// Whether the system lets this process use the tiles' registers, 8 KiB of state.
bool tiles_allowed() {
  constexpr long ask_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;           // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}

NarrowKernels find_kernels(bool tiles, bool vectors) {
  const char* wanted = std::getenv("KVCAST_TILES");
  const bool may = wanted == nullptr || std::string_view(wanted) != "0";
  if (widest_lanes() < 16) return NarrowKernels::None;
  if (may && tiles && tiles_allowed()) return NarrowKernels::Tiles;
  // A Sapphire Rapids with its tiles switched off multiplies 0.65 times as fast in AVX512-BF16 as
  // in fp32, and 1.6 times in AVX512-VNNI (512 x 768 by 1536 x 768, one core).
  return vectors ? NarrowKernels::Vectors : NarrowKernels::None;
}
#endif

}  // namespace

#if defined(__x86_64__) && defined(__gnu_linux__)
std::string_view name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::BF16: return "bf16";
    case Arithmetic::INT8: return "int8";
    case Arithmetic::FP32: break;
  }
  return "fp32";
}

Arithmetic parse_arithmetic(const std::string& text, const std::string& flag) {
  for (const Arithmetic a : {Arithmetic::FP32, Arithmetic::BF16, Arithmetic::INT8}) {
    if (text == name(a)) return a;
  }
  throw Error(flag, text, "fp32, bf16 or int8");
}

NarrowKernels narrow_kernels(Arithmetic arithmetic) {
  static const NarrowKernels bf16 =
      find_kernels(__builtin_cpu_supports("amx-bf16"), __builtin_cpu_supports("avx512bf16"));
  static const NarrowKernels int8 =
      widest_lanes() == 8
          ? NarrowKernels::Vectors
          : find_kernels(__builtin_cpu_supports("amx-int8"), __builtin_cpu_supports("avx512vnni"));
  KVCAST_ASSERT(arithmetic != Arithmetic::FP32);
  return arithmetic == Arithmetic::BF16 ? bf16 : int8;
}

void multiply_narrow(Arithmetic arithmetic, const NarrowProduct& product) {
  static const bool is_short = widest_lanes() == 8;
  if (narrow_kernels(arithmetic) == NarrowKernels::Tiles)
    return multiply_tiles(arithmetic, product);
  if (is_short) return multiply_short_vectors(product);
  multiply_vectors(arithmetic, product);
}
#else
NarrowKernels narrow_kernels(Arithmetic) { return NarrowKernels::None; }
void multiply_narrow(Arithmetic, const NarrowProduct&) { KVCAST_ASSERT(false); }
#endif

KVCAST_VECTOR_CLONES float round_to_whole(const float* x, std::size_t n, std::int8_t* out) {
  // Sizes as whole numbers, which compare alike, so that vectors find the largest.
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < n; ++i) {
    bits = std::max(bits, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  const auto largest = std::bit_cast<float>(bits);
  const bool sound = std::isfinite(largest);
  const float inverse = sound && largest > 0 ? 127.0F / largest : 0.0F;
  if (!sound || !std::isfinite(inverse)) {
    std::fill_n(out, n, std::int8_t{0});
    return sound ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  // Adding and taking away 1.5·2^23 rounds to the nearest whole number.
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::int8_t>((x[i] * inverse + 12582912.0F) - 12582912.0F);
  }
  return largest / 127.0F;
}

std::size_t NarrowRows::memory(Arithmetic arithmetic, std::size_t rows, std::size_t in,
                               std::size_t group) {
  const std::size_t padded = round_up(rows, narrow_rows);
  const std::size_t groups = round_up(in, narrow_inputs) / group;
  return padded * (row_words(arithmetic, in) + 2 * groups);
}

NarrowRows::NarrowRows(Arithmetic arithmetic, const float* x, std::size_t step, std::size_t rows,
                       std::size_t in, std::size_t group, float* memory)
    : stride_(row_words(arithmetic, in)),
      groups_(round_up(in, narrow_inputs) / group),
      per_word_(numbers_in_word(arithmetic)) {
  const std::size_t padded = round_up(rows, narrow_rows);
  words_ = reinterpret_cast<std::uint32_t*>(memory);
  scales_ = memory + padded * stride_;
  sums_ = scales_ + padded * groups_;
  std::fill_n(memory + rows * stride_, (padded - rows) * stride_, 0.0F);
  std::fill_n(scales_ + rows * groups_, (padded - rows) * groups_, 0.0F);
  std::fill_n(sums_ + rows * groups_, (padded - rows) * groups_, 0.0F);
  const std::size_t whole = in / group * group;
#pragma omp parallel for schedule(static) if (rows > 1)
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const from = x + r * step;
    std::uint32_t* const to = words_ + r * stride_;
    // The last numbers that fill no word or group, with zeros after them.
    float last[128] = {};
    KVCAST_ASSERT(group <= 128);
    if (arithmetic == Arithmetic::BF16) {
      std::fill(to + in / 2, to + stride_, 0u);
      pairs_of_row(from, in / 2, to);
      last[0] = from[in - 1];
      if (in % 2 != 0) pairs_of_row(last, 1, to + in / 2);
      continue;
    }
    std::copy(from + whole, from + in, last);
    auto* const bytes = reinterpret_cast<std::int8_t*>(to);
    for (std::size_t g = 0; g < groups_; ++g) {
      const float* const numbers = (g + 1) * group <= in ? from + g * group : last;
      const std::size_t n = g * group < in ? group : 0;
      std::fill_n(bytes + g * group + n, group - n, std::int8_t{0});
      const float scale = round_to_whole(numbers, n, bytes + g * group);
      scales_[r * groups_ + g] = scale;
      sums_[r * groups_ + g] = scale * static_cast<float>(sum_of(bytes + g * group, n));
    }
  }
}

KVCAST_VECTOR_CLONES void pack_pairs(const float* panel, std::size_t inputs,
                                     std::size_t padded_inputs, std::uint32_t* out) {
  for (std::size_t s = 0; s < narrow_outputs; s += 16, out += padded_inputs / 2 * 16) {
    std::fill(out + inputs / 2 * 16, out + padded_inputs / 2 * 16, 0u);
    for (std::size_t k = 0; k < inputs; k += 2) {
      const float* const pair = panel + k * narrow_outputs + s;
      for (std::size_t o = 0; o < 16; ++o) {
        out[k / 2 * 16 + o] = bf16_bits(pair[o]) | bf16_bits(pair[narrow_outputs + o]) << 16;
      }
    }
  }
}

void round_rows(Arithmetic arithmetic, const float* x, std::size_t step, std::size_t rows,
                std::size_t in, std::size_t group, float* out) {
#pragma omp parallel for schedule(static) if (rows > 1)
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const from = x + r * step;
    float* const to = out + r * in;
    if (arithmetic == Arithmetic::BF16) {
      for (std::size_t i = 0; i < in; ++i) to[i] = std::bit_cast<float>(bf16_bits(from[i]) << 16);
      continue;
    }
    for (std::size_t i = 0; i < in; i += group) {
      std::int8_t whole[128];
      const std::size_t n = std::min(group, in - i);
      const float scale = round_to_whole(from + i, n, whole);
      for (std::size_t j = 0; j < n; ++j) to[i + j] = scale * whole[j];
    }
  }
}

}  // namespace kvcast::execute
