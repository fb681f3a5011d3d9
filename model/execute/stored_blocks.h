/// Weights in the types that files store them in: blocks of numbers, with their scales, that
/// become fp32 in registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/base/dtype.h"

namespace kvcast::execute {

/// Outputs of a strip: some rows of a weight side by side, as many as a vector has lanes. The
/// 32-bit words of their blocks take turns, [block][word][lane]; the 16 or 8 bits that some
/// blocks have beside whole words follow, [block][lane] in 16 bits. No bit of a block is changed.
std::size_t strip_lanes();

/// The types that products read as they are stored.
std::span<const DType> stored_types();
bool has_strips(DType dtype);
/// Inputs that share a scale; pieces of a strip begin and end at multiples of them.
std::size_t strip_group(DType dtype);
/// 32-bit words that a strip of rows with `in` numbers takes: a multiple of 16.
std::size_t strip_words(DType dtype, std::size_t in);

/// Makes a strip of rows with `in` numbers in `row_bytes` bytes; what rows are missing, or numbers
/// of the last block, is zero.
void pack_strip(DType dtype, std::size_t in, const std::byte* rows, std::size_t count,
                std::size_t row_bytes, std::uint32_t* strip);

/// The strip's inputs from `first` on, `count` of them, whole groups. `in` as in strip_words.
struct StripPart {
  DType dtype;
  const std::uint32_t* strip;
  std::size_t in;
  std::size_t first;
  std::size_t count;
};
/// sums[g] = the sum of group g of x, which has a whole number of them.
void sum_groups(std::span<const float> x, std::size_t group, float* sums);
/// Whole rows and the sums of their groups; rows lie `step` and `sums_step` numbers apart.
struct StripRows {
  const float* x;
  std::size_t step;
  const float* sums;
  std::size_t sums_step;
  std::size_t count;
};
/// Most rows for which multiply_strip turns bits into numbers once. On a Sapphire Rapids products
/// of so many rows, four, take 0.8 times as long as with unpacked numbers, of two 0.55 times; five
/// rows and more are faster unpacked.
std::size_t max_strip_rows();
/// y[row · step + lane] = the part's numbers times each row, which does not depend on the others.
void multiply_strip(const StripPart& part, const StripRows& rows, float* y, std::size_t step);
/// out[input · step + lane] = the part's numbers: those of read_elements, bit for bit where the
/// processor fuses multiply-adds.
void unpack_strip(const StripPart& part, float* out, std::size_t step);
/// The same rounded to bf16: out[input / 2 · lanes + lane] has two inputs, the first one below.
void unpack_pairs(const StripPart& part, std::uint32_t* out);

/// Whether the type's numbers are scale · byte + minimum with a scale and a minimum by group.
bool has_bytes(DType dtype);
/// Whether bytes above 127 are among them.
bool has_wide_bytes(DType dtype);
/// out[input / 4 · lanes + lane] has four inputs' bytes, the first one lowest; scales and minimums
/// are [group][lane]. Needs has_bytes().
void unpack_bytes(const StripPart& part, std::uint32_t* out, float* scales, float* minimums);
/// y[lane] = the part's numbers times x, a row of NarrowRows with its scales and sums by group.
/// Needs has_bytes() and narrow_kernels() for INT8.
void multiply_bytes(const StripPart& part, const std::uint32_t* x, const float* scales,
                    const float* sums, float* y);

}  // namespace kvcast::execute
