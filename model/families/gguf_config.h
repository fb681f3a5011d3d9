/// What a GGUF file's metadata say of the model: its config.
///
/// Source: ggml-org/llama.cpp, convert_hf_to_gguf.py (classes LlamaModel ... OpenELMModel).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/io/tensors/gguf.h"

namespace kvcast {

/// The config.json that read_config() takes for the model in the file. Llama 3.1's frequencies
/// become the rope_type "frequency_factors"; the head is tied when the file has no output.weight;
/// general.name becomes "_name_or_path". Throws Error: another architecture, a missing or
/// impossible entry, one file of a split model.
nlohmann::json gguf_config(const GgufFile& file);

}  // namespace kvcast
