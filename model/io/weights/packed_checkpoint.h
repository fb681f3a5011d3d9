/// Hugging Face checkpoints whose weights are quantised.
///
/// Sources   quantization_config.py and integrations/ of transformers; DeepSeek-V3,
/// README_WEIGHTS.md; vllm-project/compressed-tensors, docs of its formats; casper-hansen/AutoAWQ,
/// awq/utils/packing_utils.py; AutoGPTQ/AutoGPTQ, auto_gptq/nn_modules/qlinear
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/io/tensors/stored_tensor.h"

namespace kvcast {

class JsonObject;

struct Packing {
  enum class Method { Fp8, Mxfp4, Awq, Gptq, CompressedTensors };
  Method method;
  /// Of fp8, outputs and inputs that share a scale; 0: as many as the scales say.
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  /// Of int4, inputs; 0: all, of compressed-tensors as many as the scales say.
  std::uint64_t group = 0;
  bool has_own_order = false;     ///< of int4, each input's group is stored (desc_act)
  std::uint32_t zero_offset = 0;  ///< of int4, what stored zeros are less
};

/// Reads a quantization_config. Throws Error naming the method or the key that kvcast does not
/// read.
Packing read_packing(const JsonObject& quantization_config);

/// The tensors of a folder with safetensors and this config.json, packed ones united. Throws Error
/// as the functions here and read_safetensors_folder do.
std::vector<StoredTensor> read_checkpoint_folder(const std::filesystem::path& folder,
                                                 const nlohmann::json& config);

/// The tensors with every weight in one piece, under the name that it has without quantisation.
/// Throws Error naming a tensor without its scales, or whose type or shape is wrong.
std::vector<StoredTensor> unite_packed(std::vector<StoredTensor> stored, const Packing& packing);

}  // namespace kvcast
