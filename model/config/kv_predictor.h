/// KV Prediction's linear maps as a folder of their own: config.json with model_type
/// "kvcast_kv_predictor", and model.safetensors with `predictor.layers.I.{key,value}.{weight,bias}`
/// of each base layer I, weights [base features, auxiliary features]. Where both models cache
/// latents, "key" is the rotated part of the key and "value" the latent.
///
/// Source: Horton et al. 2024 (arXiv:2410.08391), section 3.2; apple/corenet, kv_prediction.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/config/architecture.h"
#include "model/config/layer_map.h"

namespace kvcast {

inline constexpr std::string_view predictor_model_type = "kvcast_kv_predictor";
inline constexpr std::string_view predictor_prefix = "predictor.";

/// The shapes of one model that the maps must fit.
struct PredictorSide {
  std::string name;
  std::uint64_t vocab_size = 0;
  std::vector<std::uint64_t> num_key_value_heads;  ///< by layer
  std::vector<std::uint64_t> head_dim;             ///< by layer
  /// By layer of a model that caches latents, which has one head of the key's rotated part.
  std::vector<std::uint64_t> kv_lora_rank = {};
};

/// What is predicted of a layer: keys and values, or the key's rotated part and the latent.
enum class PredictedPart { Keys, Values };
std::uint64_t predicted_features(const LayerShape& layer, PredictedPart part);

struct PredictorConfig {
  PredictorSide base;
  PredictorSide auxiliary;
  LayerMap map;
};

PredictorSide predictor_side(const Architecture& a);

nlohmann::json predictor_json(const PredictorConfig& config);
/// Throws Error naming the place: missing or impossible entries, a map that does not fit.
PredictorConfig read_predictor_config(const nlohmann::json& config, const std::string& place);

/// Throws Error unless the predictor was made for models of these shapes.
void check_predictor(const PredictorConfig& config, const std::string& place,
                     const Architecture& base, const Architecture& auxiliary);

/// "layers.3.key.weight": without the prefix.
std::string predictor_weight(std::size_t layer, std::string_view part, std::string_view kind);

/// Throws Error unless the auxiliary can predict the base's cache: both are decoder-only models
/// whose layers all have keys and values of their own, or both such with latents, not converted for
/// slim attention, and may_share_tokens().
void check_pair(const Architecture& base, const Architecture& auxiliary);

/// Σ_i (auxiliary features + 1)·base features, biases included, for keys and for values.
std::uint64_t predictor_parameters(const Architecture& base, const Architecture& auxiliary,
                                   const LayerMap& map);

}  // namespace kvcast
