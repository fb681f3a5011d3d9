#include "model/families/gguf_forms.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvcast::families {
namespace {

using nlohmann::json;

// enum llama_expert_gating_func_type
constexpr std::uint64_t gating_softmax = 1;
constexpr std::uint64_t gating_sigmoid = 2;

/// transformers' layer_types. `usual`: every how many layers one has no window, where the file does
/// not say.
json layer_types(const GgufReader& r, std::uint64_t usual) {
  json types = json::array();
  for (const bool window : r.windowed_layers(usual)) {
    types.push_back(window ? "sliding_attention" : "full_attention");
  }
  return types;
}

void add_window(const GgufReader& r, json& c, std::uint64_t usual_pattern) {
  c["sliding_window"] = r.whole("attention.sliding_window");
  c["layer_types"] = layer_types(r, usual_pattern);
}

void complete_gemma3(const GgufReader& r, json& c) {
  // Without a window all layers are alike.
  if (r.whole_or("attention.sliding_window", 0) > 0) {
    add_window(r, c, 6);
    c["rope_local_base_freq"] = r.number_or("rope.freq_base_swa", 10000);
  } else {
    c["sliding_window_pattern"] = 1;
  }
  if (r.has("final_logit_softcapping")) {
    c["final_logit_softcapping"] = r.number("final_logit_softcapping");
  }
  // As in Gemma 2 (llama_families.cpp), the 27B model is told by its layers.
  constexpr std::uint64_t layers_of_27b = 62;
  const std::uint64_t heads = r.whole("attention.head_count");
  const bool is_27b = r.num_hidden_layers() == layers_of_27b && heads > 0;
  c["query_pre_attn_scalar"] = is_27b ? r.whole("embedding_length") / heads : r.head_dim();
}

/// Layers with windows do not scale their rotations.
void complete_olmo3(const GgufReader& r, json& c) {
  add_window(r, c, 4);
  json full = c.value("rope_scaling", json{{"rope_type", "default"}});
  const double base = c["rope_theta"];
  full["rope_theta"] = base;
  const double local = r.number_or("rope.freq_base_swa", base);
  c["rope_parameters"] = {{"full_attention", full},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
  c.erase("rope_scaling");
  c.erase("rope_theta");
}

void complete_exaone4(const GgufReader& r, json& c) {
  constexpr std::uint64_t layers_of_32b = 64;  // the model with windows, whatever its file says
  if (r.whole_or("attention.sliding_window", 0) > 0) {
    add_window(r, c, 4);
  } else if (r.num_hidden_layers() == layers_of_32b) {
    c["sliding_window"] = 4096;
    c["layer_types"] = layer_types(r, 4);
  } else {
    c["sliding_window"] = nullptr;
  }
}

void complete_granite(const GgufReader& r, json& c) {
  if (!r.flag_or("rope.scaling.finetuned", true)) {
    r.metadata().fail(r.key("rope.scaling.finetuned"), "false",
                      "true: Granite without rotations is not modelled");
  }
  add_granite_scales(r, c);
}

void complete_cohere(const GgufReader& r, json& c) {
  c["logit_scale"] = r.number_or("logit_scale", 0.0625);
  if (r.has_tensor("blk.0.attn_q_norm.weight")) c["use_qk_norm"] = true;
}

void complete_cohere2(const GgufReader& r, json& c) {
  c["logit_scale"] = r.number("logit_scale");
  add_window(r, c, 4);
}

void complete_starcoder2(const GgufReader& r, json& c) {
  // The converter leaves the window out, and llama.cpp runs without.
  const std::uint64_t window = r.whole_or("attention.sliding_window", 0);
  if (window > 0) c["sliding_window"] = window;
}

void complete_stablelm(const GgufReader& r, json& c) {
  c["use_qkv_bias"] = r.has_projection_bias();
  c["qk_layernorm"] = r.has_tensor("blk.0.attn_q_norm.weight");
  r.pass_over("use_parallel_residual");  // true in files of models without
  c["use_parallel_residual"] = !r.has_tensor("blk.0.ffn_norm.weight");
}

void complete_glm4(const GgufReader& r, json& c) {
  // Then rows of queries and keys have another order.
  if (r.has("rope.dimension_sections")) {
    r.metadata().fail(r.key("rope.dimension_sections"), "sections",
                      "none: GLM-4 of images is not modelled");
  }
  c["attention_bias"] = r.has_projection_bias();
}

void complete_seed_oss(const GgufReader& r, json& c) {
  c["attention_bias"] = r.has_projection_bias();
  c["attention_out_bias"] = r.has_in_layers("attn_output.bias");
}

/// The share of the standard normal distribution below x.
double normal_share(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

void complete_gemma3n(const GgufReader& r, json& c) {
  add_window(r, c, 5);
  c["rope_local_base_freq"] = r.number_or("rope.freq_base_swa", 10000);
  if (r.has("final_logit_softcapping")) {
    c["final_logit_softcapping"] = r.number("final_logit_softcapping");
  }
  c["altup_num_inputs"] = r.whole_or("altup.num_inputs", 4);
  c["altup_active_idx"] = r.whole_or("altup.active_idx", 0);
  c["hidden_size_per_layer_input"] = r.whole("embedding_length_per_layer_input");
  c["vocab_size_per_layer_input"] =
      r.rows("per_layer_token_embd.weight", "a table of the tokens' inputs to layers");
  c["laurel_rank"] = r.rows("blk.0.laurel_l.weight", "a matrix");
  constexpr std::uint64_t owners = 20;  // where a file does not say
  const std::uint64_t layers = r.num_hidden_layers();
  c["num_kv_shared_layers"] =
      r.whole_or("attention.shared_kv_layers", layers > owners ? layers - owners : 0);
  if (!r.has("activation_sparsity_scale")) return;
  // Gates are cut off so many standard deviations above their mean.
  json shares = json::array();
  for (const float x : r.metadata().numbers(r.key("activation_sparsity_scale"))) {
    shares.push_back(normal_share(x));
  }
  c["activation_sparsity_pattern"] = shares;
}

void complete_phi(const GgufReader& r, json& c) {
  c["qk_layernorm"] = r.has_tensor("blk.0.attn_q_norm.weight");
}

void complete_phi3(const GgufReader& r, json& c) {
  if (r.has("rope.scaling.original_context_length")) {
    c["original_max_position_embeddings"] = r.whole("rope.scaling.original_context_length");
  }
  const std::uint64_t window = r.whole_or("attention.sliding_window", 0);
  if (window > 0) c["sliding_window"] = window;
}

void complete_phimoe(const GgufReader& r, json& c) {
  complete_phi3(r, c);
  c["lm_head_bias"] = r.has_tensor("output.bias");
  if (!c.contains("rope_scaling")) return;
  // short_mscale and long_mscale of all published models, which no key says; the key has Phi-3's.
  constexpr double gain = 1.243163121016122;
  c["rope_scaling"]["short_mscale"] = c["rope_scaling"]["long_mscale"] = gain;
}

/// The experts and the one for all tokens must be as wide as the file's dense MLP would be.
void complete_hunyuan_moe(const GgufReader& r, json& c) {
  const std::uint64_t width = r.whole("feed_forward_length");
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["num_shared_expert"] = r.whole_or("expert_shared_count", 1);
  const char* const shared = "expert_shared_feed_forward_length";
  if (r.whole_or(shared, width) != width) {
    r.metadata().fail(r.key(shared), std::to_string(r.whole(shared)), std::to_string(width));
  }
}

void complete_ernie4_5_moe(const GgufReader& r, json& c) {
  c["moe_num_experts"] = r.whole("expert_count");
  c.erase("num_local_experts");
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["moe_num_shared_experts"] = r.whole_or("expert_shared_count", 0);
  r.pass_over("expert_shared_feed_forward_length");  // the converter's guess
  c["moe_layer_start_index"] = r.whole_or("leading_dense_block_count", 0);
  c["moe_layer_interval"] = r.whole("interleave_moe_layer_step");
  const std::vector<bool> sparse = r.layers_with("ffn_gate_inp.weight");
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (sparse[i]) c["moe_layer_end_index"] = i;
  }
}

/// Keys of config.json for the width of the experts and of the one that all tokens read.
void add_expert_sizes(const GgufReader& r, json& c) {
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["n_shared_experts"] = r.whole("expert_shared_count");
  c["first_k_dense_replace"] = r.whole_or("leading_dense_block_count", 0);
  c["routed_scaling_factor"] = r.number_or("expert_weights_scale", 1);
}

void complete_qwen2_moe(const GgufReader& r, json& c) {
  add_gated_experts(r, c);
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
  c["qkv_bias"] = r.has_projection_bias();
}

/// llama.cpp runs these two families with weights that are or are not normed, whatever a file says.
void complete_qwen3_moe(const GgufReader& r, json& c) {
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", true);
  if (r.has("expert_feed_forward_length")) {
    c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  }
  const std::vector<bool> dense = r.layers_with("ffn_gate.weight");
  c["mlp_only_layers"] = json::array();
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i]) c["mlp_only_layers"].push_back(i);
  }
}

void complete_olmoe(const GgufReader& r, json& c) {
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
  if (r.has("attention.clamp_kqv")) c["clip_qkv"] = r.number("attention.clamp_kqv");
}

void complete_gpt_oss(const GgufReader& r, json& c) {
  c["intermediate_size"] = r.whole("expert_feed_forward_length");
  add_window(r, c, 2);
  // No key says it; all of the family's models do.
  if (c.contains("rope_scaling") && c["rope_scaling"]["rope_type"] == "yarn") {
    c["rope_scaling"]["truncate"] = false;
  }
}

void complete_llama4(const GgufReader& r, json& c) {
  c["intermediate_size_mlp"] = r.whole("feed_forward_length");
  c["intermediate_size"] = r.whole("expert_feed_forward_length");
  c["interleave_moe_layer_step"] = r.whole("interleave_moe_layer_step");
  // Maverick, which has no such norm.
  constexpr std::uint64_t experts_of_maverick = 128;
  c["use_qk_norm"] = r.whole("expert_count") != experts_of_maverick;
  if (r.whole_or("attention.sliding_window", 1) == 0) {
    c["attention_chunk_size"] = nullptr;
    c["no_rope_layer_interval"] = r.num_hidden_layers() + 1;
    c["attn_temperature_tuning"] = false;
  }
}

void complete_corrected_experts(const GgufReader& r, json& c) {
  require_sigmoid(r);
  add_expert_sizes(r, c);
  add_groups(r, c, 1, 1);
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
}

/// The converter leaves the windows out, and llama.cpp runs without.
void complete_dots1(const GgufReader& r, json& c) {
  complete_corrected_experts(r, c);
  c["sliding_window"] = nullptr;
}

void complete_glm4_moe(const GgufReader& r, json& c) {
  complete_corrected_experts(r, c);
  c["attention_bias"] = r.has_projection_bias();
  c["use_qk_norm"] = r.has_tensor("blk.0.attn_q_norm.weight");
}

/// llama.cpp scales the embeddings in all of these files.
void complete_afmoe(const GgufReader& r, json& c) {
  require_sigmoid(r);
  rename_experts(c);
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["num_shared_experts"] = r.whole("expert_shared_count");
  c["num_dense_layers"] = r.whole_or("leading_dense_block_count", 0);
  c["route_scale"] = r.number_or("expert_weights_scale", 1);
  c["route_norm"] = r.flag_or("expert_weights_norm", true);
  add_window(r, c, 4);
  c["mup_enabled"] = true;
}

void complete_exaone_moe(const GgufReader& r, json& c) {
  require_sigmoid(r);
  rename_experts(c);
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["num_shared_experts"] = r.whole("expert_shared_count");
  r.pass_over("expert_shared_feed_forward_length");  // both multiplied
  c["first_k_dense_replace"] = r.whole_or("leading_dense_block_count", 0);
  c["routed_scaling_factor"] = r.number_or("expert_weights_scale", 1);
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
  add_groups(r, c, 1, 1);
  add_window(r, c, 4);
}

void complete_minimax_m2(const GgufReader& r, json& c) {
  require_sigmoid(r);
  c["intermediate_size"] = r.whole("expert_feed_forward_length");
}

/// The sizes of latent attention. Files of before April 2025 have the key and value lengths of
/// expanded heads; later ones have those of what is cached, and expanded heads' under other keys.
void add_latents(const GgufReader& r, json& c) {
  c["q_lora_rank"] =
      r.has("attention.q_lora_rank") ? json(r.whole("attention.q_lora_rank")) : json();
  c["kv_lora_rank"] = r.whole("attention.kv_lora_rank");
  const char* const key =
      r.has("attention.key_length_mla") ? "attention.key_length_mla" : "attention.key_length";
  const std::uint64_t key_length = r.whole(key);
  const std::uint64_t rope_dims = r.whole("rope.dimension_count");
  if (key_length <= rope_dims) {
    r.metadata().fail(r.key(key), std::to_string(key_length),
                      "more than the " + std::to_string(rope_dims) + " rotated dims");
  }
  c["qk_nope_head_dim"] = key_length - rope_dims;
  for (const char* cached : {"attention.key_length", "attention.value_length"}) r.pass_over(cached);
  c["attention_bias"] = r.has_tensor("blk.0.attn_output.bias");
}

void complete_deepseek(const GgufReader& r, json& c) {
  add_latents(r, c);
  c["v_head_dim"] = r.whole(r.has("attention.value_length_mla") ? "attention.value_length_mla"
                                                                : "attention.value_length");
  add_expert_sizes(r, c);
  if (!c.contains("rope_scaling") || c["rope_scaling"]["rope_type"] != "yarn") return;
  if (!r.has("rope.scaling.yarn_log_multiplier")) return;
  // Of this architecture it is a tenth of mscale_all_dim, which mscale equals in all models.
  const double all_dim = r.number("rope.scaling.yarn_log_multiplier") / 0.1;
  c["rope_scaling"]["mscale"] = c["rope_scaling"]["mscale_all_dim"] = all_dim;
}

/// Groups of files that do not say: those of the models that have some, V2 with 160 experts and V3
/// with 256. The converter writes them since October 2025.
void complete_deepseek_v2(const GgufReader& r, json& c) {
  complete_deepseek(r, c);
  c.erase("num_local_experts");
  const std::uint64_t experts = r.whole("expert_count");
  c["n_routed_experts"] = experts;
  const bool is_v2 = experts == 160;
  if (r.flag_or("expert_weights_norm", false)) {
    r.metadata().fail(r.key("expert_weights_norm"), "true", "false: experts of DeepSeek-V2");
  }
  add_groups(r, c, is_v2 ? 8 : 1, is_v2 ? 3 : 1);
  if (c["n_group"] != 1) c["topk_method"] = "group_limited_greedy";
  if (c["n_group"] == 1) {
    c.erase("n_group");
    c.erase("topk_group");
  }
}

void complete_deepseek_v3(const GgufReader& r, json& c) {
  complete_deepseek(r, c);
  const bool is_v3 = r.whole("expert_count") == 256;
  add_groups(r, c, is_v3 ? 8 : 1, is_v3 ? 4 : 1);
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
}

void complete_deepseek_v32(const GgufReader& r, json& c) {
  require_sigmoid(r);
  complete_deepseek_v3(r, c);
  c["index_n_heads"] = r.whole("attention.indexer.head_count");
  c["index_head_dim"] = r.whole("attention.indexer.key_length");
  c["index_topk"] = r.whole("attention.indexer.top_k");
}

/// Files whose source does not say the gate have the correction that only V3's experts read.
bool is_deepseek_v3(const GgufReader& r) {
  const bool corrected = r.has_in_layers("exp_probs_b.bias");
  return r.whole_or("expert_gating_func", corrected ? gating_sigmoid : gating_softmax) ==
         gating_sigmoid;
}

void complete_minicpm3(const GgufReader& r, json& c) {
  add_latents(r, c);
  if (r.has("attention.value_length")) c["v_head_dim"] = r.whole("attention.value_length");
}

}  // namespace

void add_granite_scales(const GgufReader& r, json& c) {
  c["embedding_multiplier"] = r.number_or("embedding_scale", 1);
  c["residual_multiplier"] = r.number_or("residual_scale", 1);
  c["logits_scaling"] = r.number("logit_scale");
  c["attention_multiplier"] =
      r.number_or("attention.scale", 1 / std::sqrt(static_cast<double>(r.head_dim())));
}

void add_groups(const GgufReader& r, json& c, std::uint64_t groups, std::uint64_t kept) {
  c["n_group"] = r.whole_or("expert_group_count", groups);
  c["topk_group"] = r.whole_or("expert_group_used_count", kept);
}

void rename_experts(json& c) {
  c["num_experts"] = c["num_local_experts"];
  c.erase("num_local_experts");
}

void require_sigmoid(const GgufReader& r) {
  const std::uint64_t gating = r.whole_or("expert_gating_func", gating_sigmoid);
  if (gating == gating_sigmoid) return;
  r.metadata().fail(r.key("expert_gating_func"), std::to_string(gating), "2, sigmoid");
}

void add_gated_experts(const GgufReader& r, json& c) {
  c["num_experts"] = r.whole("expert_count");
  c.erase("num_local_experts");
  const char* const width = "expert_feed_forward_length";
  const char* const shared = "expert_shared_feed_forward_length";
  c["moe_intermediate_size"] = r.has(width)
                                   ? r.whole(width)
                                   : r.whole("feed_forward_length") /
                                         std::max(r.whole("expert_used_count"), std::uint64_t{1});
  c["shared_expert_intermediate_size"] = r.whole(r.has(shared) ? shared : "feed_forward_length");
}

GgufForm gemma3_form() { return {.architecture = "gemma3", .complete = complete_gemma3}; }

GgufForm olmo2_form() { return {.architecture = "olmo2"}; }

GgufForm olmo3_form() {
  return {
      .architecture = "olmo2",
      .is_of = [](const GgufReader& r) { return r.whole_or("attention.sliding_window", 0) > 0; },
      .complete = complete_olmo3};
}

GgufForm glm4_form() {
  return {.architecture = "glm4", .fused_gate_up = true, .complete = complete_glm4};
}

GgufForm seed_oss_form() {
  return {.architecture = "seed_oss",
          .names = {{"mlp_norm", "post_attention_norm"}},
          .complete = complete_seed_oss};
}

GgufForm ernie4_5_form() { return {.architecture = "ernie4_5"}; }

GgufForm arcee_form() { return {.architecture = "arcee", .interleaved_heads = true}; }

GgufForm gemma3n_form() {
  return {.architecture = "gemma3n",
          .names = {{"altup.router", "altup_router"},
                    {"altup.router_norm", "altup_router_norm"},
                    {"altup.prediction", "altup_predict_coef"},
                    {"altup.correction", "altup_correct_coef"},
                    {"altup.scale", "altup_correct_scale"},
                    {"laurel.left", "laurel_l"},
                    {"laurel.right", "laurel_r"},
                    {"laurel_norm", "laurel_post_norm"},
                    {"layer_input.gate", "inp_gate"},
                    {"layer_input.projection", "proj"},
                    {"layer_input_norm", "post_norm"}},
          .complete = complete_gemma3n};
}

GgufForm exaone4_form() { return {.architecture = "exaone4", .complete = complete_exaone4}; }

GgufForm smollm3_form() { return {.architecture = "smollm3", .interleaved_heads = true}; }

GgufForm granite_form() {
  return {.architecture = "granite", .interleaved_heads = true, .complete = complete_granite};
}

GgufForm granitemoe_form() {
  return {.architecture = "granitemoe", .interleaved_heads = true, .complete = complete_granite};
}

GgufForm cohere_form() { return {.architecture = "command-r", .complete = complete_cohere}; }

GgufForm cohere2_form() { return {.architecture = "cohere2", .complete = complete_cohere2}; }

GgufForm starcoder2_form() {
  return {.architecture = "starcoder2", .complete = complete_starcoder2};
}

GgufForm stablelm_form() { return {.architecture = "stablelm", .complete = complete_stablelm}; }

GgufForm phi_form() { return {.architecture = "phi2", .complete = complete_phi}; }

GgufForm phi3_form() {
  return {
      .architecture = "phi3", .fused_qkv = true, .fused_gate_up = true, .complete = complete_phi3};
}

GgufForm hunyuan_dense_form() { return {.architecture = "hunyuan-dense"}; }

GgufForm hunyuan_moe_form() {
  return {.architecture = "hunyuan-moe", .complete = complete_hunyuan_moe};
}

GgufForm ernie4_5_moe_form() {
  return {.architecture = "ernie4_5-moe", .complete = complete_ernie4_5_moe};
}

GgufForm phimoe_form() { return {.architecture = "phimoe", .complete = complete_phimoe}; }

GgufForm mixtral_form() {
  return {.architecture = "llama", .interleaved_heads = true, .is_of = [](const GgufReader& r) {
            return r.whole_or("expert_count", 0) > 0;
          }};
}

GgufForm qwen2_moe_form() { return {.architecture = "qwen2moe", .complete = complete_qwen2_moe}; }

GgufForm qwen3_moe_form() {
  return {.architecture = "qwen3moe",
          .other_architecture = "qwen3vlmoe",
          .complete = complete_qwen3_moe};
}

GgufForm olmoe_form() { return {.architecture = "olmoe", .complete = complete_olmoe}; }

GgufForm gpt_oss_form() {
  return {.architecture = "gpt-oss",
          .names = {{"mlp_norm", "post_attention_norm"}},
          .complete = complete_gpt_oss};
}

GgufForm llama4_form() { return {.architecture = "llama4", .complete = complete_llama4}; }

GgufForm glm4_moe_form() {
  return {.architecture = "glm4moe",
          .names = {{"mlp_norm", "post_attention_norm"}},
          .complete = complete_glm4_moe};
}

GgufForm dots1_form() { return {.architecture = "dots1", .complete = complete_dots1}; }

GgufForm afmoe_form() {
  return {.architecture = "afmoe",
          .names = {{"attention_gate", "attn_gate"}},
          .complete = complete_afmoe};
}

GgufForm exaone_moe_form() {
  return {.architecture = "exaone-moe", .later_layers = true, .complete = complete_exaone_moe};
}

GgufForm minimax_m2_form() {
  return {.architecture = "minimax-m2", .complete = complete_minimax_m2};
}

GgufForm deepseek_v2_form() {
  return {.architecture = "deepseek2", .complete = complete_deepseek_v2};
}

GgufForm deepseek_v3_form() {
  return {.architecture = "deepseek2", .is_of = is_deepseek_v3, .complete = complete_deepseek_v3};
}

GgufForm deepseek_v32_form() {
  return {.architecture = "deepseek32",
          .names = {{"index_query", "indexer.attn_q_b"},
                    {"index_key", "indexer.attn_k"},
                    {"index_key_norm", "indexer.k_norm"},
                    {"index_weights", "indexer.proj"}},
          .complete = complete_deepseek_v32};
}

GgufForm minicpm3_form() { return {.architecture = "minicpm3", .complete = complete_minicpm3}; }

}  // namespace kvcast::families
