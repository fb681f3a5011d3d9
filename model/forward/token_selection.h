/// Which tokens of a prompt the base model sees.
///
/// Source of the rule: Liu et al. 2025 (Speculative Prefill, arXiv:2502.02789), section 3, and the
/// authors' code (Jingyu6/speculative_prefill, worker/look_ahead_spec_worker.py).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/base/count.h"

namespace kvcast {

/// How a prompt method chooses.
struct TokenSelection {
  double keep = 1;          ///< share of the tokens, or of the chunks, rounded up
  std::uint64_t chunk = 0;  ///< tokens that stay or go together; 0: each on its own
  /// Tokens are drawn by lot with this seed; none: by importance.
  std::optional<std::uint64_t> seed = {};
  /// The base reads the last kept token alone: the others' keys and values are taken from a cache
  /// of the whole prompt, at the indices that the pass's input "kept" [batch, kept - 1] holds.
  bool reused = false;
  /// What stands for the number of kept tokens where it depends on which chunks are kept.
  std::optional<Symbol> kept_tokens = {};
  /// What stands for the number of queries that importance is a mean of, where a stop token may end
  /// the look-ahead.
  std::optional<Symbol> queries = {};
};

/// The kept tokens of ⌈prompt_len/chunk⌉ chunks, the last one shorter. Where that one may be kept
/// or not, a symbol that the run finds; `selection` then names it.
Count kept_tokens(Symbols& symbols, const Count& prompt_len, TokenSelection& selection);

/// Ascending positions of the ⌈keep·n⌉ most important tokens, or of the tokens of the ⌈keep·chunks⌉
/// chunks whose mean importance is largest; the first among equals, and NaNs as minus infinity.
std::vector<std::uint64_t> select_tokens(std::span<const double> importance,
                                         const TokenSelection& selection);

/// Numbers from a seed, the same everywhere, to select by lot with.
std::vector<double> random_importance(std::uint64_t tokens, std::uint64_t seed);

}  // namespace kvcast
