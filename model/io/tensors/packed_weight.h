/// Weights that checkpoints keep in several tensors: the codes of their numbers, and what scales
/// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

/// scale · e4m3, a scale for each block of `rows` outputs and `columns` inputs.
/// Source   e4m3: OCP 8-bit Floating Point Specification (OFP8) v1.0, section 5
struct Fp8Weight {
  StoredTensor codes;   ///< F8_E4M3 [out, in]
  StoredTensor scales;  ///< F32, BF16 or F16, a row for each row of blocks
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
};

/// MXFP4 with numbers 2i and 2i + 1 of a block in its byte i.
struct Fp4Weight {
  StoredTensor blocks;  ///< U8 [..., out, in / 32, 16]
  StoredTensor scales;  ///< U8 [..., out, in / 32], exponents
};

/// scale · (code - zero), a scale and a zero for each output and group of inputs; eight codes in a
/// word.
struct Int4Weight {
  enum class Order {
    Inputs,   ///< [in / 8, out], zeros [groups, out / 8], scales [groups, out]
    Outputs,  ///< the same with codes [in, out / 8], outputs 0, 2, 4, 6, 1, 3, 5, 7 of a word
    Rows,     ///< [out, in / 8], scales [out, groups]
  };
  Order order;
  StoredTensor codes;
  StoredTensor scales;
  std::optional<StoredTensor> zeros = {};  ///< none: 8
  std::uint32_t zero_offset = 0;           ///< added to those of the file, modulo 16
  std::uint64_t group = 0;                 ///< inputs
  std::vector<std::uint32_t> groups = {};  ///< of each input; empty: in order
};

struct PackedWeight {
  std::variant<Fp8Weight, Fp4Weight, Int4Weight> form;
  std::uint64_t out;  ///< of all experts
  std::uint64_t in;
};

/// The weight as one tensor, [..., out, in], under its name. Its dtype is FP32 where read_blocks
/// cannot give its rows. Throws Error naming the tensor whose type or shape is wrong.
StoredTensor packed_tensor(std::string name, Fp8Weight weight);
StoredTensor packed_tensor(std::string name, Fp4Weight weight);
StoredTensor packed_tensor(std::string name, Int4Weight weight);

/// Of all its tensors.
std::uint64_t packed_bytes(const PackedWeight& weight);

/// What read_elements and read_blocks do, without their check that numbers are finite. Scales that
/// are not finite are an Error.
void read_packed(const PackedWeight& weight, std::uint64_t first, std::span<float> out);
void read_packed_blocks(const PackedWeight& weight, const RowBlock& block, std::uint64_t first,
                        std::span<std::byte> out);

}  // namespace kvcast
