/// Which models may read the same token ids, as a base and its helper do.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/config/architecture.h"

namespace kvcast {

/// Vocabularies of one tokenizer are padded differently: Qwen2.5's 0.5B has 151,936 rows, its 7B
/// 152,064. Ours: twice that difference.
inline constexpr std::uint64_t vocabulary_padding = 256;

/// Whether the vocabularies differ by padding at most, rows of ids that no text has. What
/// tokenizers make of the ids is not seen here.
inline bool may_share_tokens(const Architecture& a, const Architecture& b) {
  const auto [fewer, more] = std::minmax(a.vocab_size, b.vocab_size);
  return more - fewer <= vocabulary_padding;
}

}  // namespace kvcast
