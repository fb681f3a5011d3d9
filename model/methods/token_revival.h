/// Layers that see fewer and fewer tokens, and take dropped ones back in decode steps.
///
/// Prefill drops tokens between layers. A dropped token's hidden state, the output of the last
/// layer that saw it, goes to the Aux Cache (tensors "aux.states" and "aux.tokens", a row for each
/// prompt token that some layer has not seen). A decode step starts from all tokens. From layer to
/// layer it keeps the same share of them as prefill kept of the prompt: those that its own token
/// attends to most in the layer below. Kept tokens without keys and values in the next layer are
/// revived: beside the step's own token they go through the layer from their state in the Aux
/// Cache, at their own positions. So each layer sees each token at most once.
/// Source: Fu et al. 2024 (LazyLLM, arXiv:2407.14057), sections 3.2 and 4, figure 4.
///
/// Where the paper leaves it open, we read:
/// - A decode step's share is of all tokens so far, its own included, which is always kept.
/// - A revived token attends to the step's kept tokens that are not after it.
/// - A revived token's state is written back when the next layer chooses anew, dropped or not.
#pragma once

#include <vector>

#include "model/methods/method.h"

namespace kvcast {

/// Plans such passes. `shares`: the share of the tokens that each layer sees; 1 in the first layer,
/// never growing. `revived` is what estimates expect.
void prune_progressively(Plan& plan, const std::vector<double>& shares, RevivedShares revived);

}  // namespace kvcast
