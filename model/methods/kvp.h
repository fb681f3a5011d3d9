/// What KV Prediction's training needs of its method.
///
/// Source: Horton et al. 2024 (arXiv:2410.08391), section 3; apple/corenet, kv_prediction.py.
#pragma once

#include "model/config/layer_map.h"
#include "model/methods/method.h"

namespace kvcast {

/// The auxiliary layer of each base layer: the predictor's, which must be the one that option `map`
/// names, if it is given. Throws Error where they differ, or do not fit the models.
LayerMap predictor_map(const MethodSpec& spec, const Architecture& base,
                       const Architecture& auxiliary);

}  // namespace kvcast
