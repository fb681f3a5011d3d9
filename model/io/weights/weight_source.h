/// Where a weight of the forward pass comes from in a checkpoint file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvcast {

struct WeightSource {
  std::vector<std::string> names;   ///< the first of them that the file has
  std::vector<std::uint64_t> rows;  ///< stored rows that make up the weight; empty: all, in order
  bool transposed = false;          ///< stored [in, out] (GPT-2): `rows` are columns, in order
  double offset = 0;                ///< added to every element
};

/// A weight's name in parts: "decoder.layers.3.query.weight" is {decoder., 3, query, .weight}.
struct WeightName {
  std::string stack;                 ///< "", "encoder." or "decoder."
  std::optional<std::size_t> layer;  ///< none: outside the layers
  std::string part;
  std::string kind;  ///< ".weight" or ".bias"
};
WeightName parse_weight_name(const std::string& name);

/// Throws Error for more rows than any model has, which only a file that lies asks for.
void check_row_list(std::uint64_t count, const std::string& place = "the model's shape");
/// Rows first ... first + count - 1. Throws Error as check_row_list does.
std::vector<std::uint64_t> row_range(std::uint64_t first, std::uint64_t count);

}  // namespace kvcast
