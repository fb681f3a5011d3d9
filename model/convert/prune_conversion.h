/// Makes a layer-pruned checkpoint: some decoder layers of another one, as they are.
///
/// KV Prediction's auxiliary models "LP" start as such (Horton et al. 2024, arXiv:2410.08391,
/// section 4.3 and Table 4), and are trained further.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"
#include "model/convert/conversion_source.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast {

struct PruneConversion {
  std::vector<std::size_t> kept;  ///< layers, ascending
  DType dtype = DType::FP32;      ///< of the weights written
};

/// "0.75", "0.5" or "0.25" (Table 4), or layer indices "0,2,5". Throws Error for other texts.
std::vector<std::size_t> parse_kept_layers(std::string_view text, std::size_t num_hidden_layers);

/// The tensors get Hugging Face's names and forms, a GGUF file's as well. `on_tensor` is called
/// before each tensor. Throws Error as prune_layers, Checkpoint and CheckpointWriter do; then
/// nothing is written.
ConversionReport convert_to_pruned(const Checkpoint& checkpoint,
                                   const std::filesystem::path& output,
                                   const PruneConversion& conversion,
                                   const Progress& on_tensor = nullptr);

}  // namespace kvcast
