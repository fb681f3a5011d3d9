#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/families/gguf_forms.h"

namespace kvcast::families {
namespace {

using nlohmann::json;

/// The sizes of a state space, which is a Mamba-2 or a Gated DeltaNet.
struct StateSizes {
  std::uint64_t inner;
  std::uint64_t heads;
  std::uint64_t groups;
  std::uint64_t key_dim;
  std::uint64_t kernel;
};

StateSizes read_states(const GgufReader& r) {
  const StateSizes s{r.whole("ssm.inner_size"), r.whole("ssm.time_step_rank"),
                     r.whole("ssm.group_count"), r.whole("ssm.state_size"),
                     r.whole("ssm.conv_kernel")};
  if (s.heads == 0 || s.inner % s.heads != 0) {
    r.metadata().fail(r.key("ssm.inner_size"), std::to_string(s.inner),
                      "a multiple of the " + std::to_string(s.heads) + " heads");
  }
  return s;
}

/// The mixer's width over the model's.
std::uint64_t mamba_expand(const GgufReader& r) {
  const std::uint64_t inner = r.whole("ssm.inner_size");
  const std::uint64_t hidden = r.whole("embedding_length");
  if (hidden == 0 || inner % hidden != 0) {
    r.metadata().fail(r.key("ssm.inner_size"), std::to_string(inner),
                      "a multiple of the embedding's length");
  }
  return inner / hidden;
}

json types_of(const std::vector<bool>& recurrent) {
  json types = json::array();
  for (const bool state : recurrent) {
    types.push_back(state ? "linear_attention" : "full_attention");
  }
  return types;
}

/// Keys of config.json that Granite 4 and Falcon-H1 share.
void add_mamba(const GgufReader& r, json& c, const StateSizes& s) {
  c["mamba_n_heads"] = s.heads;
  c["mamba_n_groups"] = s.groups;
  c["mamba_d_state"] = s.key_dim;
  c["mamba_d_conv"] = s.kernel;
  c["mamba_conv_bias"] = r.has_in_layers("ssm_conv1d.bias");
  c["mamba_proj_bias"] = r.has_in_layers("ssm_in.bias");
}

/// Granite 4, and mixtures of Granite 3 with an expert for all tokens, which have no mixers.
bool is_granitehybrid(const GgufReader& r) {
  return r.metadata().text("general.architecture") == "granitehybrid" ||
         r.whole_or("expert_shared_feed_forward_length", 0) > 0;
}

/// Layers without key-value heads have a mixer.
void complete_granitehybrid(const GgufReader& r, json& c) {
  add_granite_scales(r, c);
  if (r.has("ssm.inner_size")) {
    const StateSizes s = read_states(r);
    add_mamba(r, c, s);
    c["mamba_expand"] = mamba_expand(r);
  } else {
    c["mamba_n_heads"] = 1;  // of no layer
  }
  std::vector<bool> recurrent = r.attending_layers();
  recurrent.flip();
  c["layer_types"] = types_of(recurrent);
  c["position_embedding_type"] = r.flag_or("rope.scaling.finetuned", true) ? "rope" : "nope";
  const bool experts = r.whole_or("expert_count", 0) > 0;
  if (!experts) c["num_local_experts"] = c["num_experts_per_tok"] = 0;
  const char* const shared = "expert_shared_feed_forward_length";
  r.pass_over(shared);
  c["shared_intermediate_size"] = experts ? json(r.whole(shared)) : c["intermediate_size"];
}

/// The multipliers are in the weights. llama.cpp's norm comes behind the gate.
void complete_falcon_h1(const GgufReader& r, json& c) {
  const StateSizes s = read_states(r);
  add_mamba(r, c, s);
  c["mamba_d_ssm"] = s.inner;
  c["mamba_rms_norm"] = r.has_in_layers("ssm_norm.weight");
  c["mamba_norm_before_gate"] = false;
  c["projectors_bias"] = r.has_in_layers("ssm_out.bias");
}

void complete_nemotron_h(const GgufReader& r, json& c) {
  const StateSizes s = read_states(r);
  c["mamba_num_heads"] = s.heads;
  c["mamba_head_dim"] = s.inner / s.heads;
  c["n_groups"] = s.groups;
  c["ssm_state_size"] = s.key_dim;
  c["conv_kernel"] = s.kernel;
  c["use_conv_bias"] = r.has_in_layers("ssm_conv1d.bias");
  c["use_bias"] = r.has_in_layers("ssm_in.bias");
  const bool experts = r.whole_or("expert_count", 0) > 0;
  const auto heads = r.by_layer("attention.head_count_kv", 0);
  const auto widths = r.by_layer("feed_forward_length", 0);
  json types = json::array();
  for (std::uint64_t i = 0; i < r.num_hidden_layers(); ++i) {
    const char* const mlp = experts ? "moe" : "mlp";
    const char* const mixer = heads[i] > 0 ? "full_attention" : "linear_attention";
    types.push_back(widths[i] > 0 ? mlp : mixer);
  }
  c["layers_block_type"] = types;
  if (c["intermediate_size"] == 0) c["intermediate_size"] = 1;  // of no block
  if (!experts) return;
  c["n_routed_experts"] = c["num_local_experts"];
  c.erase("num_local_experts");
  c["moe_intermediate_size"] = r.whole_or_none("expert_feed_forward_length");
  c["moe_shared_expert_intermediate_size"] = r.whole("expert_shared_feed_forward_length");
  r.pass_over("expert_shared_count");
  c["norm_topk_prob"] = r.flag_or("expert_weights_norm", false);
  c["routed_scaling_factor"] = r.number_or("expert_weights_scale", 1);
  add_groups(r, c, 1, 1);
  if (r.whole_or("moe_latent_size", 0) > 0) c["moe_latent_size"] = r.whole("moe_latent_size");
}

/// Keys of config.json for every so many layers from a first one on. `found` in the file.
void add_period(const GgufReader& r, const std::string& kind, const std::vector<bool>& found,
                json& c) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) which.push_back(i);
  }
  const std::size_t offset = which.empty() ? found.size() : which.front();
  const std::size_t period = which.size() < 2 ? found.size() + 1 : which[1] - which[0];
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == (i % period == offset)) continue;
    r.metadata().fail(r.key("block_count"),
                      kind + " layers at unequal distances, or not in the first period",
                      "every so many layers one");
  }
  c[kind + "_layer_period"] = period;
  c[kind + "_layer_offset"] = offset;
}

/// Layers without key-value heads have a mixer.
void complete_jamba(const GgufReader& r, json& c) {
  c["mamba_expand"] = mamba_expand(r);
  c["mamba_d_state"] = r.whole("ssm.state_size");
  c["mamba_d_conv"] = r.whole("ssm.conv_kernel");
  c["mamba_dt_rank"] = r.whole("ssm.time_step_rank");
  c["mamba_conv_bias"] = r.has_in_layers("ssm_conv1d.bias");
  c["mamba_proj_bias"] = r.has_in_layers("ssm_in.bias");
  add_period(r, "attn", r.attending_layers(), c);
  add_period(r, "expert", r.layers_with("ffn_gate_inp.weight"), c);
  if (r.whole_or("expert_count", 0) == 0) c["num_experts"] = 1;  // an MLP
}

/// Layers without key-value heads have a convolution.
void complete_lfm2(const GgufReader& r, json& c) {
  json types = json::array();
  for (const bool attends : r.attending_layers()) {
    types.push_back(attends ? "full_attention" : "conv");
  }
  c["layer_types"] = types;
  c["conv_L_cache"] = r.whole("shortconv.l_cache");
  c["conv_bias"] = r.has_in_layers("shortconv.conv.bias");
  c["block_auto_adjust_ff_dim"] = false;
}

void complete_lfm2_moe(const GgufReader& r, json& c) {
  complete_lfm2(r, c);
  c.erase("block_auto_adjust_ff_dim");
  require_sigmoid(r);
  rename_experts(c);
  c["moe_intermediate_size"] = r.whole("expert_feed_forward_length");
  c["num_dense_layers"] = r.whole_or("leading_dense_block_count", 0);
  c["routed_scaling_factor"] = r.number_or("expert_weights_scale", 1);
  c["use_expert_bias"] = r.has_in_layers("exp_probs_b.bias");
}

void complete_qwen3_5(const GgufReader& r, json& c) {
  const StateSizes s = read_states(r);
  c["linear_num_value_heads"] = s.heads;
  c["linear_num_key_heads"] = s.groups;
  c["linear_key_head_dim"] = s.key_dim;
  c["linear_value_head_dim"] = s.inner / s.heads;
  c["linear_conv_kernel_dim"] = s.kernel;
  const char* const key = "attention.recurrent_layers";
  const std::uint64_t interval = r.whole_or("full_attention_interval", 4);
  if (r.has(key)) {
    c["layer_types"] = types_of(r.flags(key));
  } else {
    c["full_attention_interval"] = interval;
  }
}

void complete_qwen3_5_moe(const GgufReader& r, json& c) {
  complete_qwen3_5(r, c);
  add_gated_experts(r, c);
}

}  // namespace

GgufForm granitehybrid_form() {
  return {.architecture = "granitehybrid",
          .other_architecture = "granitemoe",
          .interleaved_heads = true,
          .uneven_layers = true,
          .is_of = is_granitehybrid,
          .complete = complete_granitehybrid};
}

GgufForm falcon_h1_form() {
  return {.architecture = "falcon-h1",
          .names = {{"mlp_norm.weight", "ffn_norm"}},
          .complete = complete_falcon_h1};
}

GgufForm jamba_form() {
  return {.architecture = "jamba",
          .uneven_layers = true,
          .rotates = false,
          .names = {{"state.conv_value", "ssm_conv1d"},
                    {"state.of_values", "ssm_x"},
                    {"state.time_step", "ssm_dt"},
                    {"state.time_step_latent_norm", "ssm_dt_norm"},
                    {"state.key_norm", "ssm_b_norm"},
                    {"state.query_norm", "ssm_c_norm"}},
          .complete = complete_jamba};
}

GgufForm lfm2_form() {
  return {.architecture = "lfm2",
          .uneven_layers = true,
          .names = {{"state.projections", "shortconv.in_proj"},
                    {"state.conv_value", "shortconv.conv"},
                    {"state.output", "shortconv.out_proj"},
                    {"final_norm", "token_embd_norm"}},
          .complete = complete_lfm2};
}

GgufForm lfm2_moe_form() {
  GgufForm form = lfm2_form();
  form.architecture = "lfm2moe";
  form.complete = complete_lfm2_moe;
  return form;
}

GgufForm nemotron_h_form() {
  return {.architecture = "nemotron_h",
          .other_architecture = "nemotron_h_moe",
          .uneven_layers = true,
          .rotates = false,
          .later_layers = true,
          .names = {{"mlp_norm", "attn_norm"}},
          .complete = complete_nemotron_h};
}

GgufForm qwen3_next_form() {
  return {.architecture = "qwen3next",
          .later_layers = true,
          .names = {{"mlp_norm", "post_attention_norm"},
                    {"query_gates", "attn_q"},
                    {"state.ba", "ssm_ba"}},
          .complete = complete_qwen3_5_moe};
}

GgufForm qwen3_5_form() {
  return {.architecture = "qwen35",
          .later_layers = true,
          .tiled_states = true,
          .names = {{"mlp_norm", "post_attention_norm"},
                    {"query_gates", "attn_q"},
                    {"state.qkv", "attn_qkv"},
                    {"state.gate", "attn_gate"},
                    {"state.beta", "ssm_beta"},
                    {"state.time_step", "ssm_alpha"}},
          .complete = complete_qwen3_5};
}

GgufForm qwen3_5_moe_form() {
  GgufForm form = qwen3_5_form();
  form.architecture = "qwen35moe";
  form.complete = complete_qwen3_5_moe;
  return form;
}

}  // namespace kvcast::families
