#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"
#include "model/families/mixture_parts.h"

namespace kvcast::families {

void read_corrected_experts(const JsonObject& c, Architecture& a, const CorrectedExperts& d) {
  Experts e{.routing = read_routing(c, d.experts_key, d.experts, d.per_token)};
  e.routing.score = Routing::Score::Sigmoid;
  e.routing.group_score = Routing::GroupScore::TwoLargest;
  e.routing.normalizes = c.flag_or("norm_topk_prob", true);
  e.routing.weight_scale = c.positive_or(d.scale_key, d.scale);
  read_groups(c, e.routing, d.groups, d.groups_kept);
  e.router_correction = true;
  e.intermediate_size = c.whole_or("moe_intermediate_size", d.width);
  e.shared_intermediate_size =
      checked_multiply(c.whole_or(d.shared_key, d.shared), e.intermediate_size);
  const std::uint64_t first = c.whole_or(d.dense_key, d.dense_layers, 0);
  const std::size_t layers = a.decoder.layers.size();
  set_experts(a.decoder, e,
              layers_of_type(
                  c, layers, "sparse", [&](std::size_t i) { return i >= first; },
                  d.listed_layers ? "mlp_layer_types" : "", "dense"));
  c.whole_or("num_nextn_predict_layers", 0, 0);  // layers after the model's, not run
  require_text(c, "scoring_func", d.scoring);
  require_text(c, "topk_method", "noaux_tc");
  if (c.whole_or("moe_layer_freq", 1) != 1) c.fail("moe_layer_freq", "1");
}

namespace {

void refine_glm4_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", false);
  if (c.flag_or("use_qk_norm", false)) s.query_key_norm = QueryKeyNorm::Heads;
  read_corrected_experts(c, a, {.experts = 128, .width = 1408});
}

void refine_dots1(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  read_corrected_experts(c, a,
                         {.experts = c.whole("n_routed_experts"),
                          .width = 1408,
                          .dense_layers = 0,
                          .scoring = "noaux_tc"});
  const bool normalizes = c.flag_or("norm_topk_prob", false);
  const std::uint64_t window = sliding_window(c, 4096);
  const std::uint64_t first = c.whole_or("max_window_layers", 62, 0);
  read_windows(s, c, window, [&](std::size_t i) { return i >= first; });
  for (LayerShape& layer : s.layers) {
    if (layer.experts) layer.experts->routing.normalizes = normalizes;
  }
}

/// EXAONE 4's windows, before experts. Hub files list the layers with experts in a key that
/// transformers does not read.
void refine_exaone_moe(const JsonObject& c, Architecture& a) {
  exaone4().refine(c, a);
  read_corrected_experts(c, a,
                         {.experts = 64,
                          .width = 1024,
                          .scale = 2.5,
                          .listed_layers = true,
                          .experts_key = "num_experts",
                          .shared_key = "num_shared_experts"});
  const std::vector<LayerShape>& layers = a.decoder.layers;
  const auto sparse = [&](std::size_t i) { return layers[i].experts.has_value(); };
  const std::vector<bool> listed = layer_flags(c, "is_moe_layer", layers.size(), sparse);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (listed[i] != sparse(i)) c.fail("is_moe_layer", "the layers that mlp_layer_types says");
  }
}

void refine_solar_open(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", false);
  read_corrected_experts(c, a, {.experts = 128, .width = 1280, .dense_layers = 0});
  // The class has no such keys; the first models' files have those of GLM-4.5.
  if (c.whole_or("first_k_dense_replace", 0, 0) != 0) c.fail("first_k_dense_replace", "0");
  require_flag(c, "use_qk_norm", false, "norms of queries and keys");
  for (LayerShape& layer : s.layers) layer.intermediate_size = layer.experts->intermediate_size;
}

/// Windows with rotations, every fourth layer neither.
void refine_afmoe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::uint64_t interval = c.whole_or("global_attn_every_n_layers", 4);
  if (c.is_null("sliding_window")) c.fail("sliding_window", "a number");
  const auto sliding = read_windows(s, c, c.whole_or("sliding_window", 1024),
                                    [&](std::size_t i) { return (i + 1) % interval != 0; });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (!sliding[i]) s.layers[i].rope = nullptr;
  }
  if (c.flag_or("mup_enabled", false)) {
    a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  }
  require_flag(c, "attention_bias", false, "biases beside a gate without one");
  read_corrected_experts(c, a,
                         {.experts = 64,
                          .per_token = 6,
                          .width = 1408,
                          .shared = 2,
                          .experts_key = "num_experts",
                          .shared_key = "num_shared_experts",
                          .scale_key = "route_scale",
                          .dense_key = "num_dense_layers"});
  // Keys of the published files that transformers takes for granted.
  require_text(c, "score_func", "sigmoid");
  require_flag(c, "route_norm", true, "weights that are not normed");
  require_flag(c, "norm_topk_prob", true, "weights that are not normed");
  for (const char* key : {"n_group", "num_expert_groups", "num_limited_groups"}) {
    if (c.whole_or(key, 1) != 1) c.fail(key, "1: groups of experts are not modelled here");
  }
}

void refine_hy_v3(const JsonObject& c, Architecture& a) {
  read_corrected_experts(c, a,
                         {.experts = 192,
                          .width = 1536,
                          .scale = 2.826,
                          .listed_layers = true,
                          .experts_key = "num_experts",
                          .shared_key = "num_shared_experts",
                          .scale_key = "router_scaling_factor"});
  // Keys of the published files that transformers takes for granted.
  require_flag(c, "moe_router_use_sigmoid", true, "routers by a softmax");
  require_flag(c, "moe_router_enable_expert_bias", true, "routers without correction");
  require_flag(c, "route_norm", true, "weights that are not normed");
  require_flag(c, "norm_topk_prob", true, "weights that are not normed");
  require_flag(c, "qk_norm", true, "queries and keys without norms");
  if (c.whole_or("n_group", 1) != 1)
    c.fail("n_group", "1: groups of experts are not modelled here");
  const std::uint64_t width = c.whole_or("moe_intermediate_size", 1536);
  if (c.whole_or("expert_hidden_dim", width) != width) {
    c.fail("expert_hidden_dim", "moe_intermediate_size");
  }
}

void refine_sarvam_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", false);
  if (c.flag_or("use_qk_norm", true)) s.query_key_norm = QueryKeyNorm::Heads;
  read_corrected_experts(c, a, {.experts = 128, .per_token = 6, .width = 1024, .scale = 2.5});
  require_text(c, "score_function", "sigmoid");
}

}  // namespace

Family glm4_moe() {
  Family f = llama_like("glm4_moe");
  f.stack.norm_eps = 1e-5;
  f.keys.default_key_value_heads = 8;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.5;
  f.keys.other_names = {{"n_routed_experts", "num_local_experts"},
                        {"num_nextn_predict_layers", "num_mtp_layers"}};
  f.refine = refine_glm4_moe;
  f.names.in_layer =
      with(f.names.in_layer, {{"query_norm", "self_attn.q_norm"},
                              {"key_norm", "self_attn.k_norm"},
                              {"router.correction", "mlp.gate.e_score_correction_bias"}});
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_experts");
  f.names.later_layers = true;
  f.gguf = glm4_moe_form();
  return f;
}

/// GLM-4.5's mixtures, Qwen3's attention.
Family dots1() {
  Family f = glm4_moe();
  f.model_types = {"dots1"};
  f.stack.norm_eps = 1e-6;
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 32;
  f.keys.rotary_share = nullptr;
  f.refine = refine_dots1;
  f.gguf = dots1_form();
  return f;
}

/// EXAONE 4's attention, GLM-4.5's mixtures.
Family exaone_moe() {
  Family f = glm4_moe();
  f.model_types = {"exaone_moe"};
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.keys.default_key_value_heads = 32;
  f.keys.rotary_share = nullptr;
  f.keys.other_names = {};
  f.keys.unread = {"first_last_k_dense_replace"};
  f.refine = refine_exaone_moe;
  f.names.in_layer["router.correction"] = "mlp.e_score_correction_bias";
  f.gguf = exaone_moe_form();
  return f;
}

/// GLM-4.5 with experts in all layers; usually whole heads rotate.
Family solar_open() {
  Family f = glm4_moe();
  f.model_types = {"solar_open"};
  f.keys.intermediate_size = "moe_intermediate_size";
  f.keys.default_mlp_ratio = 1;
  f.keys.default_head_dim = 128;
  f.keys.default_rotary_share = 1;
  f.keys.default_rope_theta = 1000000;
  f.keys.unread = {"intermediate_size"};
  f.refine = refine_solar_open;
  f.gguf = {};
  return f;
}

/// Arcee's Trinity: gated attention, norms before and after the branches.
Family afmoe() {
  Family f = llama_like("afmoe");
  f.stack.norm_eps = 1e-5;
  f.stack.post_norms = true;
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.stack.attention_gate = true;
  f.keys.default_head_dim = 128;
  f.keys.unread = {"load_balance_coeff", "use_grouped_mm"};
  f.refine = refine_afmoe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_experts");
  f.names.in_layer = with(f.names.in_layer, {{"query_norm", "self_attn.q_norm"},
                                             {"key_norm", "self_attn.k_norm"},
                                             {"attention_gate", "self_attn.gate_proj"},
                                             {"post_attention_norm", "post_attention_layernorm"},
                                             {"mlp_norm", "pre_mlp_layernorm"},
                                             {"post_mlp_norm", "post_mlp_layernorm"},
                                             {"router", "mlp.router.gate"},
                                             {"router.correction", "mlp.expert_bias"}});
  f.gguf = afmoe_form();
  return f;
}

/// Tencent's Hy3: Qwen3's attention, DeepSeek V3's mixtures.
Family hy_v3() {
  Family f = llama_like("hy_v3");
  f.stack.norm_eps = 1e-5;
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 11158840;
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  // Types of sums and products, which kvcast takes as exact.
  f.keys.unread = {"enable_attention_fp32_softmax", "enable_lm_head_fp32",
                   "enable_moe_fp32_combine", "use_grouped_mm"};
  f.refine = refine_hy_v3;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_mlp");
  f.names.in_layer = with(f.names.in_layer, {{"query_norm", "self_attn.q_norm"},
                                             {"key_norm", "self_attn.k_norm"},
                                             {"router", "mlp.router.gate"},
                                             {"router.correction", "mlp.expert_bias"}});
  f.names.later_layers = true;
  f.gguf = {};
  return f;
}

/// Sarvam 30B: GLM-4.5 in other sizes, under names of its own.
Family sarvam_moe() {
  Family f = glm4_moe();
  f.model_types = {"sarvam_moe"};
  f.stack.norm_eps = 1e-6;
  f.keys.default_key_value_heads = 4;
  f.keys.default_head_dim = 64;
  f.keys.default_rotary_share = 1;
  f.keys.default_rope_theta = 8000000;
  for (const char* other : {"num_experts", "num_local_experts"}) {
    f.keys.other_names.push_back({"n_routed_experts", other});
  }
  f.keys.other_names.push_back({"n_shared_experts", "num_shared_experts"});
  f.keys.other_names.push_back({"attention_bias", "use_qkv_bias"});
  f.refine = refine_sarvam_moe;
  for (const char* part : {"query", "key", "value"}) f.names.in_layer.erase(part);
  f.names.in_layer = with(f.names.in_layer, {{"qkv", "attention.query_key_value"},
                                             {"attention_output", "attention.dense"},
                                             {"query_norm", "attention.query_layernorm"},
                                             {"key_norm", "attention.key_layernorm"},
                                             {"router.correction", "mlp.gate.expert_bias"}});
  f.names.outside["embedding"] = "word_embeddings";
  f.gguf = {};
  return f;
}

}  // namespace kvcast::families
