/// Makes an MLKV checkpoint (multi-layer key-value heads) of a GPT-NeoX or Llama checkpoint.
///
/// In each layer the mean of every group of consecutive key-value heads, across the layers of a
/// group one owner of what is left, then wider MLPs. All in float64.
/// Source: zaydzuhri/pythia-mlkv, convert_to_mlkv.py; Zuhri et al. 2024 (arXiv:2406.09297), 4.2.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"
#include "model/convert/conversion_source.h"
#include "model/io/weights/checkpoint.h"
#include "model/methods/mlkv.h"

namespace kvcast {

/// How the layers of a group become their owner's keys and values.
enum class LayerMerge {
  Mean,        ///< the mean of all, as the paper says
  Sequential,  ///< owner = (owner + layer)/2 for each layer in turn, as released: the last weighs ½
};
/// "mean" or "sequential". Throws Error with the nearest word.
LayerMerge parse_layer_merge(std::string_view word);

struct MlkvConversion {
  MlkvShape shape;
  LayerMerge merge = LayerMerge::Mean;
  DType dtype = DType::FP32;  ///< of the weights written
};

struct MlkvReport : ConversionReport {
  std::vector<std::vector<std::size_t>> groups;  ///< layers, the owner first
};

/// `on_tensor` is called before each tensor. Throws Error as
/// to_mlkv, Checkpoint and CheckpointWriter do; then nothing is written.
MlkvReport convert_to_mlkv(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const MlkvConversion& conversion, const Progress& on_tensor = nullptr);

}  // namespace kvcast
