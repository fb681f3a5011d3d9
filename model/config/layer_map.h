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

/// Table 1 as printed, mistakes included. Its rows of OpenELM-1.1B with a canonical auxiliary are
/// those of the auxiliary with half of its layers, i -> i/2, so that the last auxiliary
/// layers serve nobody; with layer-pruned auxiliaries they are the code's. Throws Error for all
/// other pairs: the rows of OpenELM-3B have 28 entries for 36 layers. data/published, erratum E9.
LayerMap paper_layer_map(const Architecture& base, const Architecture& auxiliary);

/// "code", "paper", or a file of whole numbers with blanks, commas or line ends between them.
/// Throws Error as check_layer_map does, and for files that hold anything else.
LayerMap read_layer_map(std::string_view text, const Architecture& base,
                        const Architecture& auxiliary);

/// Throws Error unless there is an index for each base layer, none descends and all are auxiliary
/// layers. `place` begins the message.
void check_layer_map(const LayerMap& map, std::string_view place, const Architecture& base,
                     const Architecture& auxiliary);

/// Auxiliary layers that the map needs: its largest index and all below.
std::size_t needed_layers(const LayerMap& map);

}  // namespace kvcast
