/// How a method's next tokens differ from the base model's, position by position.
#pragma once

#include <cstdint>
#include <span>

#include "model/execute/generate.h"

namespace kvcast::measure {

/// Sums over the positions of a continuation.
struct NextTokens {
  std::uint64_t positions = 0;
  std::uint64_t agreeing = 0;     ///< the most likely token is the base model's
  std::uint64_t correct = 0;      ///< it is the continuation's
  double kl_nats = 0;             ///< KL(base || method) over the vocabulary
  double cross_entropy_nats = 0;  ///< of the continuation's token under the method

  bool all_correct() const { return correct == positions; }
};

/// Adds a position: logits of the vocabulary from the base and from the method, and the token that
/// follows. Of equal logits the first is the most likely.
void add_position(NextTokens& sums, std::span<const float> base, std::span<const float> method,
                  execute::TokenId next);

}  // namespace kvcast::measure
