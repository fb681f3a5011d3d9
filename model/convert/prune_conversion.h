/// Prunes the decoder layers of a checkpoint; the kept layers stay unchanged.
///
/// KV Prediction's "LP" auxiliary models start this way and are trained further (Horton et al.
/// 2024, arXiv:2410.08391, section 4.3 and Table 4).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/dtype.h"
#include "model/convert/conversion_source.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast {

struct PruneConversion {
  std::vector<std::size_t> kept;  ///< layer indices, ascending
  DType dtype = DType::FP32;      ///< dtype of the written weights
};

/// Parses "0.75", "0.5" or "0.25" (Table 4), or layer indices such as "0,2,5". Throws Error for
/// other texts.
std::vector<std::size_t> parse_kept_layers(std::string_view text, std::size_t num_hidden_layers);

/// The configuration of a checkpoint's model with the layers that `after` has kept of it.
nlohmann::json pruned_config(const Checkpoint& checkpoint, const Architecture& after, DType dtype);

/// The tensors get Hugging Face's names and shapes, also from a GGUF file. `on_tensor` is called
/// before each tensor. Throws Error, and writes nothing, as prune_layers, Checkpoint and
/// CheckpointWriter do.
ConversionReport convert_to_pruned(const Checkpoint& checkpoint,
                                   const std::filesystem::path& output,
                                   const PruneConversion& conversion,
                                   const Progress& on_tensor = nullptr);

}  // namespace kvcast
