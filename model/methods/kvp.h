/// KV Prediction: a small auxiliary model reads the prompt, linear maps make the base model's cache
/// of its keys and values, and the base reads the last prompt token alone.
///
/// Source: Horton et al. 2024 (arXiv:2410.08391), section 3; apple/corenet, kv_prediction.py.
#pragma once

#include <string_view>

namespace kvcast {

/// Weights of the auxiliary model and of the linear maps, in the graphs.
inline constexpr std::string_view kvp_auxiliary_prefix = "auxiliary.";
inline constexpr std::string_view kvp_predictor_prefix = "predictor.";

/// True for "lp-0.75", "lp-0.50", "lp-0.25": the base with layers pruned.
bool is_pruned_auxiliary(std::string_view name);

}  // namespace kvcast
