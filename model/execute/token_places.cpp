#include "model/execute/token_places.h"

#include <algorithm>

namespace kvcast::execute {
namespace {

std::vector<std::size_t> tokens_of(const Operand& x, std::size_t b, DType dtype) {
  std::vector<std::size_t> tokens(x.shape[1]);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::size_t>(dtype == DType::FP64 ? x.sequence<double>(b)[i]
                                                              : x.sequence<float>(b)[i]);
  }
  return tokens;
}

}  // namespace

TokenPlaces::TokenPlaces(const std::vector<std::size_t>& tokens) {
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    if (tokens[row] >= rows_.size()) rows_.resize(tokens[row] + 1, none);
    rows_[tokens[row]] = row;
  }
}

std::uint64_t num_missing(const Call& call, DType dtype) {
  const auto missing_of = [&](std::size_t b) {
    const TokenPlaces held(tokens_of(call.inputs[0], b, dtype));
    const std::vector<std::size_t> wanted = tokens_of(call.inputs[1], b, dtype);
    return std::count_if(wanted.begin(), wanted.end(),
                         [&](std::size_t token) { return !held.has(token); });
  };
  const auto missing = missing_of(0);
  KVCAST_ASSERT(missing > 0);
  for (std::size_t b = 1; b < call.inputs[0].shape[0]; ++b) KVCAST_ASSERT(missing_of(b) == missing);
  return static_cast<std::uint64_t>(missing) - 1;
}

}  // namespace kvcast::execute
