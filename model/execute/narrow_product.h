/// Products of numbers narrower than fp32, summed in fp32: bf16, and int8 with scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcast::execute {

/// What products of rows with a weight compute in.
enum class Arithmetic : std::uint8_t {
  FP32,
  BF16,  ///< rows and weights are rounded to bf16
  INT8,  ///< rows are rounded to whole numbers up to 127, scaled by group; weights as stored
};

std::string_view name(Arithmetic arithmetic);
/// Throws Error, which names the flag.
Arithmetic parse_arithmetic(const std::string& text, const std::string& flag);

/// How this processor multiplies such numbers.
enum class NarrowKernels : std::uint8_t {
  None,     ///< as fp32 numbers, after the same rounding
  Vectors,  ///< AVX512-BF16; AVX512-VNNI or AVX2
  Tiles,    ///< AMX
};
/// The fastest that the environment's KVCAST_TILES, which may say 0, and KVCAST_MAX_LANES allow.
NarrowKernels narrow_kernels(Arithmetic arithmetic);

/// The next multiple.
constexpr std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Inputs come in multiples of this.
inline constexpr std::size_t narrow_inputs = 32;
/// Rows, and the room for their sums.
inline constexpr std::size_t narrow_rows = 16;
/// Outputs of a panel: 4 strips of 16, or 8 of 8.
inline constexpr std::size_t narrow_outputs = 64;

/// Rows rounded for a product: 32-bit words of two bf16 numbers or four int8 numbers.
class NarrowRows {
 public:
  /// Floats of memory for rows of `in` numbers that share a scale by `group`.
  static std::size_t memory(Arithmetic arithmetic, std::size_t rows, std::size_t in,
                            std::size_t group);
  /// Row r of x is its `in` numbers from r·step on. Works on all threads.
  NarrowRows(Arithmetic arithmetic, const float* x, std::size_t step, std::size_t rows,
             std::size_t in, std::size_t group, float* memory);

  const std::uint32_t* words(std::size_t row, std::size_t first_in) const {
    return words_ + row * stride_ + first_in / per_word_;
  }
  std::size_t stride() const { return stride_; }  ///< words from one row to the next
  /// Of a row's group, in INT8: number = scale · whole number.
  const float* scales(std::size_t row) const { return scales_ + row * groups_; }
  /// Sums of a group's numbers.
  const float* sums(std::size_t row) const { return sums_ + row * groups_; }
  std::size_t groups() const { return groups_; }

 private:
  std::uint32_t* words_;
  float* scales_;
  float* sums_;
  std::size_t stride_;
  std::size_t groups_;
  std::size_t per_word_;
};

/// Numbers that share a scale, rounded to whole numbers of at most 127 times the scale, which is
/// returned: NaN when one of them is not finite.
float round_to_whole(const float* x, std::size_t n, std::int8_t* out);

/// x as NarrowRows has it, in fp32: what processors without kernels multiply. out[rows, in].
void round_rows(Arithmetic arithmetic, const float* x, std::size_t step, std::size_t rows,
                std::size_t in, std::size_t group, float* out);

/// Some inputs of 64 outputs: strips of 16, or as wide as AVX2's vectors, [word][output] with a
/// word as in NarrowRows; in INT8 bytes are unsigned, and number = scale · byte + minimum.
struct NarrowPanel {
  const std::uint32_t* strips[narrow_outputs / 8];
  const float* scales = nullptr;    ///< [strip][group][output]
  const float* minimums = nullptr;  ///< likewise
  std::size_t group = narrow_inputs;
  bool wide = false;  ///< whether bytes may be above 127
};

/// The strips, one after another, of a panel [inputs, 64] in BF16; inputs that are missing are 0.
void pack_pairs(const float* panel, std::size_t inputs, std::size_t padded_inputs,
                std::uint32_t* out);

/// The inputs from `first_in` on, `count_in` of them, whole groups and a multiple of narrow_inputs;
/// rows from `first_row` on. sums[row, 64], for a multiple of narrow_rows, (+)= rows · panelᵀ.
struct NarrowProduct {
  const NarrowRows& rows;
  std::size_t first_row;
  std::size_t count;
  std::size_t first_in;
  std::size_t count_in;
  const NarrowPanel& panel;
  float* sums;
  bool accumulate;
};
/// Needs narrow_kernels() that are not None.
void multiply_narrow(Arithmetic arithmetic, const NarrowProduct& product);

}  // namespace kvcast::execute
