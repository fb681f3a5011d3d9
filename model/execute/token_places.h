/// Which rows of a cache are of which tokens, where a tensor says so (MissingTokens and others).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/base/dtype.h"
#include "model/execute/operand.h"

namespace kvcast::execute {

/// The rows by token. N is float or double: tokens are whole numbers in the session's dtype.
template <typename N>
class TokenPlaces {
 public:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  explicit TokenPlaces(std::span<const N> tokens) {
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const auto token = static_cast<std::size_t>(tokens[row]);
      if (token >= rows_.size()) rows_.resize(token + 1, none);
      rows_[token] = row;
    }
  }
  std::size_t row(N token) const {
    const auto index = static_cast<std::size_t>(token);
    return index < rows_.size() ? rows_[index] : none;
  }

 private:
  std::vector<std::size_t> rows_;
};

/// How many tokens a call of MissingTokens finds missing, the pass's own not counted: of each
/// sequence as many.
std::uint64_t num_missing(const Call& call, DType dtype);

}  // namespace kvcast::execute
