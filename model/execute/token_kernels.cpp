#include "model/execute/token_kernels.h"

#include <algorithm>

#include "model/execute/parallel_rows.h"
#include "model/execute/positions.h"
#include "model/execute/token_places.h"

namespace kvcast::execute {
namespace {

/// The tokens of sequence b of an operand [batch, n] or [batch, n, 1].
std::span<const float> tokens_of(const Operand& x, std::size_t b) {
  return {x.sequence(b), x.shape[1]};
}

/// Copies the cache's rows of some tokens.
void copy_rows(const Operand& cache, const TokenPlaces<float>& places, std::size_t b,
               std::span<const float> tokens, float* to) {
  const std::size_t features = cache.shape[2];
  for_rows(tokens.size(), tokens.size() * features, [&](std::size_t i) {
    const std::size_t row = places.row(tokens[i]);
    KVCAST_ASSERT(row < cache.shape[1]);
    std::copy_n(cache.sequence(b) + row * features, features, to + i * features);
  });
}

}  // namespace

void drop_tokens(const Call& call) {
  const Operand& kept = call.inputs[0];
  for (std::size_t b = 0; b < kept.shape[0]; ++b) {
    const TokenPlaces<float> places(tokens_of(kept, b));
    float* to = call.output.sequence(b);
    for (std::size_t i = 0; i < kept.shape[1] + call.output.shape[1]; ++i) {
      const auto token = static_cast<float>(i);
      if (places.row(token) == TokenPlaces<float>::none) *to++ = token;
    }
  }
}

void missing_tokens(const Call& call) {
  for (std::size_t b = 0; b < call.output.shape[0]; ++b) {
    const TokenPlaces<float> places(tokens_of(call.inputs[0], b));
    float* to = call.output.sequence(b);
    for (const float token : tokens_of(call.inputs[1], b)) {
      if (places.row(token) == TokenPlaces<float>::none) *to++ = token;
    }
  }
}

void token_rows(const Call& call) {
  for (std::size_t b = 0; b < call.output.shape[0]; ++b) {
    copy_rows(call.inputs[0], TokenPlaces<float>(tokens_of(call.inputs[1], b)), b,
              tokens_of(call.inputs[2], b), call.output.sequence(b));
  }
}

void token_states(const Call& call) {
  const Operand& x = call.inputs[2];
  const std::size_t features = x.shape[2];
  for (std::size_t b = 0; b < call.output.shape[0]; ++b) {
    const std::span<const float> tokens = tokens_of(call.inputs[3], b);
    copy_rows(call.inputs[0], TokenPlaces<float>(tokens_of(call.inputs[1], b)), b,
              tokens.first(tokens.size() - 1), call.output.sequence(b));
    std::copy_n(x.sequence(b) + (x.shape[1] - 1) * features, features,
                call.output.sequence(b) + (tokens.size() - 1) * features);
  }
}

void store_states(const Call& call) {
  const Operand& x = call.inputs[2];
  const std::size_t features = x.shape[2];
  for (std::size_t b = 0; b < call.output.shape[0]; ++b) {
    const TokenPlaces<float> places(tokens_of(call.inputs[1], b));
    const std::span<const float> tokens = tokens_of(call.inputs[3], b);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::size_t row = places.row(tokens[i]);
      KVCAST_ASSERT(row < call.output.shape[1]);
      std::copy_n(x.sequence(b) + i * features, features, call.output.sequence(b) + row * features);
    }
  }
}

void token_mask(const Call& call) {
  for (std::size_t b = 0; b < call.output.shape[0]; ++b) {
    float* to = call.output.sequence(b);
    for (const float query : tokens_of(call.inputs[0], b)) {
      for (const float key : tokens_of(call.inputs[1], b)) *to++ = key <= query ? 0 : masked_score;
    }
  }
}

}  // namespace kvcast::execute
