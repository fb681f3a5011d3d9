/// KV Prediction's tables beyond the FLOPs reductions.
#pragma once

#include <string>

#include "model/catalog.h"
#include "reports/reproduce.h"

namespace kvcast::reports {

/// The model that the paper calls "OE1.1B", "OE450M" or, of the base "OE1.1B", "OE-LP-0.75". Throws
/// Error starting with `place` for other names.
Architecture openelm_of(const Catalog& catalog, const std::string& printed, const std::string& base,
                        const std::string& place);

PublishedTable kvp_layer_map_table();
PublishedTable kvp_predictor_table();
PublishedTable kvp_ttft_table();
/// Table 4, and the numbers of the text.
PublishedTable kvp_retained_layers_table();
PublishedTable kvp_prose_table();

}  // namespace kvcast::reports
