/// Where a weight of the forward pass comes from in a checkpoint file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcast {

struct WeightSource {
  std::vector<std::string> names;   ///< the first of them that the file has
  std::vector<std::uint64_t> rows;  ///< stored rows that make up the weight; empty: all, in order
  bool transposed = false;          ///< stored [in, out] (GPT-2): `rows` are columns, in order
  double offset = 0;                ///< added to every element
};

}  // namespace kvcast
