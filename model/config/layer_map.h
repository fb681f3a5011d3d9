/// Which auxiliary layer's keys and values each base layer's are predicted from (KV Prediction).
///
/// Sources: Horton et al. 2024 (arXiv:2410.08391), section 3.2, Tables 1 and 4; apple/corenet,
/// projects/kv-prediction/openelm/*.yaml.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"

namespace kvcast {

/// By base layer: an auxiliary layer.
using LayerMap = std::vector<std::size_t>;

/// The released configurations' maps. An auxiliary made of the base's own layers: the last kept
/// layer at or below each (the first one for layers before it). Others: with q, r =
/// divmod(base layers, auxiliary layers) the first r auxiliary layers serve q + 1 base layers each,
/// the others q.
LayerMap code_layer_map(const Architecture& base, const Architecture& auxiliary);

/// Table 1 as printed, mistakes included. For OpenELM-1.1B with a canonical auxiliary it has
/// i -> i/2, as for an auxiliary of half the layers, so the last auxiliary layers are unused; with
/// layer-pruned auxiliaries it agrees with the code. Throws Error for all other pairs: the rows of
/// OpenELM-3B have 28 entries for 36 layers. data/published, erratum E9.
LayerMap paper_layer_map(const Architecture& base, const Architecture& auxiliary);

/// "code", "paper", or a file of whole numbers with blanks, commas or line ends between them.
/// Throws Error as check_layer_map does, and for files that hold anything else.
LayerMap read_layer_map(std::string_view text, const Architecture& base,
                        const Architecture& auxiliary);

/// Throws Error unless each base layer has an index of an auxiliary layer and indices do not
/// descend. The message starts with `place`.
void check_layer_map(const LayerMap& map, std::string_view place, const Architecture& base,
                     const Architecture& auxiliary);

/// The number of auxiliary layers that the map needs: its largest index and all below.
std::size_t needed_layers(const LayerMap& map);

}  // namespace kvcast
