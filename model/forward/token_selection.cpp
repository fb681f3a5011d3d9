#include "model/forward/token_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/base/error.h"
#include "model/base/mixed_bits.h"

namespace kvcast {
namespace {

/// The same rounding as in the recorded counts.
std::uint64_t ceil_share(std::uint64_t n, double share) {
  Symbols symbols;
  const Count kept = symbols.ceil_fraction(symbol::prompt_len, share);
  return kept.at(symbols.resolve({1, n, 1}));
}

std::uint64_t next_random(std::uint64_t& state) { return mixed_bits(state += splitmix_step); }

}  // namespace

Count kept_tokens(Symbols& symbols, const Count& prompt_len, TokenSelection& selection) {
  if (selection.chunk <= 1 || selection.keep == 1) {
    return symbols.ceil_fraction(prompt_len, selection.keep);
  }
  const Count chunks = symbols.ceil_divide(prompt_len, selection.chunk);
  const Count kept = symbols.ceil_fraction(chunks, selection.keep) * selection.chunk;
  selection.kept_tokens = symbols.found_by_run(symbols.minimum(kept, prompt_len), "kept_tokens");
  return *selection.kept_tokens;
}

std::vector<std::uint64_t> select_tokens(std::span<const double> importance,
                                         const TokenSelection& selection) {
  const std::uint64_t n = importance.size();
  const std::uint64_t chunk = std::max<std::uint64_t>(selection.chunk, 1);
  KVCAST_ASSERT(n > 0);
  std::vector<double> score;
  for (std::uint64_t first = 0; first < n; first += chunk) {
    const auto run = importance.subspan(first, std::min(chunk, n - first));
    const double mean =
        std::accumulate(run.begin(), run.end(), 0.0) / static_cast<double>(run.size());
    // No number is no reason to be kept, and nothing to sort by.
    score.push_back(std::isnan(mean) ? -std::numeric_limits<double>::infinity() : mean);
  }
  std::vector<std::uint64_t> chunks(score.size());
  std::iota(chunks.begin(), chunks.end(), 0);
  std::stable_sort(chunks.begin(), chunks.end(),
                   [&](std::uint64_t a, std::uint64_t b) { return score[a] > score[b]; });
  chunks.resize(ceil_share(chunks.size(), selection.keep));
  std::sort(chunks.begin(), chunks.end());
  std::vector<std::uint64_t> kept;
  for (const std::uint64_t c : chunks) {
    for (std::uint64_t i = c * chunk; i < std::min(n, (c + 1) * chunk); ++i) kept.push_back(i);
  }
  return kept;
}

std::vector<double> random_importance(std::uint64_t tokens, std::uint64_t seed) {
  std::vector<double> importance(tokens);
  for (double& x : importance) x = static_cast<double>(next_random(seed) >> 11);
  return importance;
}

}  // namespace kvcast
