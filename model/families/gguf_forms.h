/// The GGUF files of the families of 2024-26: what their metadata and tensors say beyond the keys
/// that all decoders have.
///
/// Source: ggml-org/llama.cpp, conversion/*.py (set_gguf_parameters of each class) for what files
/// say, src/models/*.cpp (load_arch_hparams) for what absent keys mean.
#pragma once

#include "model/families/family.h"

namespace kvcast::families {

GgufForm gemma3_form();
GgufForm olmo2_form();
GgufForm exaone4_form();
GgufForm smollm3_form();
GgufForm granite_form();
GgufForm granitemoe_form();
GgufForm cohere_form();
GgufForm cohere2_form();
GgufForm starcoder2_form();
GgufForm stablelm_form();
GgufForm phi_form();
GgufForm mixtral_form();
GgufForm qwen3_moe_form();
GgufForm olmoe_form();
GgufForm gpt_oss_form();
GgufForm llama4_form();
GgufForm glm4_moe_form();
GgufForm minimax_m2_form();
GgufForm deepseek_v2_form();
GgufForm deepseek_v3_form();
GgufForm minicpm3_form();

}  // namespace kvcast::families
