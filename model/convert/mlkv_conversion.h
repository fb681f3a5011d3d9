/// Converts a checkpoint to MLKV (multi-layer key-value heads).
///
/// 1. In each layer, every group of consecutive key-value heads becomes its mean.
/// 2. The layers of a group merge their keys and values into those of one owner layer.
/// 3. The MLPs are widened.
/// All in float64.
/// Source: zaydzuhri/pythia-mlkv, convert_to_mlkv.py; Zuhri et al. 2024 (arXiv:2406.09297), 4.2.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/dtype.h"
#include "model/convert/conversion_source.h"
#include "model/io/weights/checkpoint.h"
#include "model/methods/mlkv.h"

namespace kvcast {

/// How the keys and values of a group's layers merge into those of its owner.
enum class LayerMerge {
  Mean,        ///< the mean of all layers, as in the paper
  Sequential,  ///< owner = (owner + layer)/2 for each layer in turn, as in the released code
};
/// Parses "mean" or "sequential". Throws Error with the nearest word.
LayerMerge parse_layer_merge(std::string_view word);

struct MlkvConversion {
  MlkvShape shape;
  LayerMerge merge = LayerMerge::Mean;
  DType dtype = DType::FP32;  ///< dtype of the written weights
};

struct MlkvReport : ConversionReport {
  std::vector<std::vector<std::size_t>> groups;  ///< layers, the owner first
};

/// What an MLKV model's config says beside that of the model it is made of: `after` and `before`.
void add_mlkv_keys(const Architecture& before, const Architecture& after, nlohmann::json& config);

/// `on_tensor` is called before each tensor. Throws Error, and writes nothing, as to_mlkv,
/// Checkpoint and CheckpointWriter do.
MlkvReport convert_to_mlkv(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const MlkvConversion& conversion, const Progress& on_tensor = nullptr);

}  // namespace kvcast
