/// What the prompt methods that choose tokens by attention have in common.
///
/// Source: Liu et al. 2025 (Speculative Prefill, arXiv:2502.02789), section 3, and the authors'
/// code (Jingyu6/speculative_prefill, worker/look_ahead_spec_worker.py).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "model/methods/method.h"

namespace kvcast {

/// `attend` (plain_attention or keys_cached_attention), which also appends the last token's rotated
/// query to the layer's cache "queries", after `earlier` rows. Causal stacks.
Value attend_and_keep_query(const AttentionSite& site, const AttentionMethod& attend,
                            const Count& earlier);

/// The importance of each of prompt_len tokens, [batch, prompt_len, 1], the graph's output. It
/// comes from the probabilities that `queries` kept queries give the prompt's keys, averaged over
/// `pool` neighbours (0: not): the largest over layers and heads, then the mean over the queries.
/// Layers with windows are left out, if others have none. Latents are scored as they are cached.
void record_importance(Recorder& r, const Architecture& a, const Count& queries,
                       std::uint64_t pool);

/// Plans the pass "score" with that, over the caches of an earlier helper pass of `model`.
void plan_importance(Plan& plan, const NamePrefixes& prefixes, const Count& queries,
                     std::uint64_t pool, std::function<Architecture(const Plan&)> model);

/// Layers with windows have not seen most tokens: they say nothing of those where other layers do.
bool is_scored(const Stack& stack, const LayerShape& layer);
/// Throws Error when no layer of `a` sees all tokens, unless all are kept. `who`: "the speculator".
void check_scores(std::string_view method, const std::string& who, const Architecture& a,
                  double keep);

/// Throws Error unless kept tokens can keep their positions in the model.
void check_prunable(std::string_view method, const Architecture& a);

}  // namespace kvcast
