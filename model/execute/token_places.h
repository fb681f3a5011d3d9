/// Where a cache whose rows belong to tokens in any order has each token (MissingTokens and
/// others).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "model/base/dtype.h"
#include "model/execute/operand.h"

namespace kvcast::execute {

class TokenPlaces {
 public:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  explicit TokenPlaces(const std::vector<std::size_t>& tokens);
  bool has(std::size_t token) const { return row(token) != none; }
  /// `none` for a token without one.
  std::size_t row(std::size_t token) const { return token < rows_.size() ? rows_[token] : none; }

 private:
  std::vector<std::size_t> rows_;  ///< by token
};

/// How many tokens a call of MissingTokens finds missing, without the pass's own; every sequence
/// must miss the same number.
std::uint64_t num_missing(const Call& call, DType dtype);

}  // namespace kvcast::execute
