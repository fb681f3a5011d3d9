/// The operators as plain loops that count what they do: the counting mode of the executor.
///
/// FLOPs are counted by the arithmetic itself, one for each operation on numbers (a multiply-add is
/// two); bytes when an element of an operand is first touched. Nothing here reads a formula of
/// `model/work.h`, so that comparing the two says something.
#pragma once

#include <array>
#include <cstdint>

#include "model/execute/operand.h"

namespace kvcast::execute {

struct CountedWork {
  std::uint64_t flops = 0;
  std::array<std::uint64_t, num_storages> read{};     ///< bytes, by Storage
  std::array<std::uint64_t, num_storages> written{};  ///< bytes, by Storage

  std::uint64_t bytes() const;
  CountedWork& operator+=(const CountedWork& other);
  bool operator==(const CountedWork&) const = default;
};

/// Computes the node's output and counts the work. All operands hold numbers of `dtype`, FP32 or
/// FP64, and are computed with in it. Weights must have plain numbers.
CountedWork run_plain(const Call& call, DType dtype = DType::FP32);

}  // namespace kvcast::execute
