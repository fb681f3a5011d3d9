/// Layer pruning: the model that is left when some decoder layers are taken out.
///
/// KV Prediction (Horton et al. 2024, arXiv:2410.08391) compares with such models ("LP"), and uses
/// them as auxiliary models ("KVP-LP").
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/config/architecture.h"

namespace kvcast {

/// Some layers attend to the tokens that a layer below them chose (GLM-5.2), so that neither is
/// anything without the other.
bool hands_on_choices(const Stack& stack);

/// The same model with the decoder layers `kept` only; embedding, final norm and head stay.
/// `kept` holds layer indices in ascending order. Throws Error when it is empty, not ascending or
/// out of range, and for encoder-decoder, MLKV, slim and layer-pruned models.
Architecture prune_layers(const Architecture& a, std::span<const std::size_t> kept);

/// The layers that the paper's Table 4 retains: at 0.75 all but every fourth (i mod 4 = 3), at 0.50
/// the even ones, at 0.25 every fourth (i mod 4 = 0). Throws Error for other fractions.
std::vector<std::size_t> retained_layers(std::size_t num_hidden_layers, double keep_fraction);

}  // namespace kvcast
