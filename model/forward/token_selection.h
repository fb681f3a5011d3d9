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
  /// Tokens are drawn at random with this seed; without one, chosen by importance.
  std::optional<std::uint64_t> seed = {};
  /// The base reads only the last kept token. The keys and values of the others come from a cache
  /// of the whole prompt, at the indices in the pass's input "kept" [batch, kept - 1].
  bool reused = false;
  /// The number of kept tokens, where it depends on which chunks are kept.
  std::optional<Symbol> kept_tokens = {};
  /// The number of queries that importance is a mean over, where a stop token may end the
  /// look-ahead.
  std::optional<Symbol> queries = {};
};

/// The number of kept tokens of ⌈prompt_len/chunk⌉ chunks, the last of which may be shorter. If it
/// depends on whether that one is kept, it is a symbol that a run finds, set in `selection`.
Count kept_tokens(Symbols& symbols, const Count& prompt_len, TokenSelection& selection);

/// Ascending positions of the ⌈keep·n⌉ most important tokens, or of the tokens in the ⌈keep·chunks⌉
/// chunks of largest mean importance. Ties go to the earlier one; NaN counts as minus infinity.
std::vector<std::uint64_t> select_tokens(std::span<const double> importance,
                                         const TokenSelection& selection);

/// Random importance from a seed, the same on every machine.
std::vector<double> random_importance(std::uint64_t tokens, std::uint64_t seed);

}  // namespace kvcast
