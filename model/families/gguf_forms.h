/// The GGUF files of the families of 2024-26: what their metadata and tensors say beyond the keys
/// that all decoders have.
///
/// Source: ggml-org/llama.cpp, conversion/*.py (set_gguf_parameters of each class) for what files
/// say, src/models/*.cpp (load_arch_hparams) for what absent keys mean.
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

#include "model/families/family.h"

namespace kvcast::families {

GgufForm gemma3_form();
GgufForm olmo2_form();
GgufForm olmo3_form();
GgufForm exaone4_form();
GgufForm smollm3_form();
GgufForm granite_form();
GgufForm granitemoe_form();
GgufForm cohere_form();
GgufForm cohere2_form();
GgufForm starcoder2_form();
GgufForm stablelm_form();
GgufForm phi_form();
GgufForm phi3_form();
GgufForm hunyuan_dense_form();
GgufForm hunyuan_moe_form();
GgufForm ernie4_5_moe_form();
GgufForm phimoe_form();
GgufForm glm4_form();
GgufForm seed_oss_form();
GgufForm ernie4_5_form();
GgufForm arcee_form();
GgufForm gemma3n_form();
GgufForm mixtral_form();
GgufForm qwen2_moe_form();
GgufForm qwen3_moe_form();
GgufForm olmoe_form();
GgufForm gpt_oss_form();
GgufForm llama4_form();
GgufForm glm4_moe_form();
GgufForm dots1_form();
GgufForm afmoe_form();
GgufForm exaone_moe_form();
GgufForm minimax_m2_form();
GgufForm deepseek_v2_form();
GgufForm deepseek_v3_form();
GgufForm deepseek_v32_form();
GgufForm minicpm3_form();
// gguf_state_forms.cpp
GgufForm granitehybrid_form();
GgufForm falcon_h1_form();
GgufForm nemotron_h_form();
GgufForm qwen3_next_form();
GgufForm qwen3_5_form();
GgufForm qwen3_5_moe_form();
GgufForm jamba_form();
GgufForm lfm2_form();
GgufForm lfm2_moe_form();

// Parts that forms share.

/// Granite's multipliers.
void add_granite_scales(const GgufReader& r, nlohmann::json& c);
/// Keys of config.json for groups of experts; absent keys mean these.
void add_groups(const GgufReader& r, nlohmann::json& c, std::uint64_t groups, std::uint64_t kept);
/// The file's number of experts under the key of a config that calls it `num_experts`.
void rename_experts(nlohmann::json& c);
/// Throws Error unless the experts' scores are sigmoids.
void require_sigmoid(const GgufReader& r);
/// The sizes of Qwen's mixtures with a gated shared expert.
void add_gated_experts(const GgufReader& r, nlohmann::json& c);

}  // namespace kvcast::families
