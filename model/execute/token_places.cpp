#include "model/execute/token_places.h"

namespace kvcast::execute {
namespace {

template <typename N>
std::uint64_t missing_of(const Call& call, std::size_t b) {
  const Operand& held = call.inputs[0];
  const Operand& wanted = call.inputs[1];
  const TokenPlaces<N> places({held.sequence<N>(b), held.shape[1]});
  std::uint64_t missing = 0;
  for (std::size_t i = 0; i < wanted.shape[1]; ++i) {
    if (places.row(wanted.sequence<N>(b)[i]) == TokenPlaces<N>::none) ++missing;
  }
  KVCAST_ASSERT(missing > 0);
  return missing - 1;
}

template <typename N>
std::uint64_t missing_of_all(const Call& call) {
  const std::uint64_t missing = missing_of<N>(call, 0);
  for (std::size_t b = 1; b < call.inputs[0].shape[0]; ++b) {
    KVCAST_ASSERT(missing_of<N>(call, b) == missing);
  }
  return missing;
}

}  // namespace

std::uint64_t num_missing(const Call& call, DType dtype) {
  return dtype == DType::FP64 ? missing_of_all<double>(call) : missing_of_all<float>(call);
}

}  // namespace kvcast::execute
