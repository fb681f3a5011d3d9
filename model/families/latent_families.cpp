#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"
#include "model/families/mixture_parts.h"

namespace kvcast::families {
namespace {

using nlohmann::json;

/// YaRN's mscale_all_dim on the scores. Source: transformers, models/deepseek_v3,
/// yarn_apply_mscale.
void scale_scores(const JsonObject& c, Stack& s) {
  const std::optional<JsonObject> scaling = rope_parameters(c);
  if (!scaling || scaling->text_or("rope_type", scaling->text_or("type", "default")) == "default") {
    return;
  }
  const double all_dim = scaling->number_or("mscale_all_dim", 0);
  if (all_dim == 0) return;
  const double factor = scaling->positive("factor");
  const double m = factor <= 1 ? 1 : 0.1 * all_dim * std::log(factor) + 1;
  s.attention_scale *= m * m;
}

/// The sizes that latent attention takes.
struct LatentDefaults {
  std::uint64_t query_rank;
  std::uint64_t rank;
  std::uint64_t nope_dim;
  std::uint64_t value_dim;
};

/// Reads latents, their rotations and biases; `keys` are the family's.
void read_latents(const JsonObject& c, Architecture& a, const ConfigKeys& keys,
                  const LatentDefaults& d) {
  Stack& s = a.decoder;
  Latent l;
  l.query_rank = c.is_null("q_lora_rank") ? 0 : c.whole_or("q_lora_rank", d.query_rank);
  l.rank = c.whole_or("kv_lora_rank", d.rank);
  l.nope_dim = c.whole_or("qk_nope_head_dim", d.nope_dim);
  l.rope_dim = c.whole_or(keys.rope_dims, keys.default_rope_dims);
  l.value_dim = c.whole_or("v_head_dim", d.value_dim);
  const bool bias = c.flag_or("attention_bias", false);
  s.query_bias = s.key_bias = s.attention_output_bias = bias;
  const auto rope = read_rope(c, keys, l.rope_dim);
  const std::uint64_t heads = s.layers.front().heads.num_attention_heads;
  for (LayerShape& layer : s.layers) {
    layer.latent = l;
    layer.rope = rope;
    layer.heads = {heads, heads, l.nope_dim + l.rope_dim};
  }
  s.attention_scale = inverse_root(l.nope_dim + l.rope_dim);
  scale_scores(c, s);
}

void refine_deepseek_v2(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  read_latents(c, a, keys, {1536, 512, 128, 128});
  Experts e{.routing = read_routing(c, "n_routed_experts", 64, 0)};
  const std::string method = c.text_or("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    read_groups(c, e.routing, 1, 1);
  } else if (method != "greedy") {
    c.fail("topk_method", "greedy or group_limited_greedy");
  }
  c.flag_or("norm_topk_prob", false);  // transformers reads it and does not use it
  require_text(c, "scoring_func", "softmax");
  e.routing.weight_scale = c.positive_or("routed_scaling_factor", 1);
  e.intermediate_size = c.whole_or("moe_intermediate_size", 1407);
  e.shared_intermediate_size = c.whole_or("n_shared_experts", 2) * e.intermediate_size;
  const std::uint64_t first = c.whole_or("first_k_dense_replace", 0, 0);
  std::vector<bool> sparse(a.decoder.layers.size());
  for (std::size_t i = 0; i < sparse.size(); ++i) sparse[i] = i >= first;
  set_experts(a.decoder, e, sparse);
}

constexpr CorrectedExperts deepseek_v3_experts{
    .experts = 256, .width = 2048, .scale = 2.5, .groups = 8, .groups_kept = 4, .dense_layers = 3};

/// DeepSeek V3's layers, of other sizes.
void read_latent_mixture(const JsonObject& c, Architecture& a, const ConfigKeys& keys,
                         const LatentDefaults& latents, const CorrectedExperts& experts) {
  ConfigKeys own = keys;
  own.interleaved_rope = c.flag_or("rope_interleave", true);
  read_latents(c, a, own, latents);
  read_corrected_experts(c, a, experts);
}

/// An indexer in each layer, whose heads rotate in pairs or half-split.
void read_indexer(const JsonObject& c, Stack& s, std::uint64_t default_heads, bool interleaved) {
  if (c.is_null("q_lora_rank")) c.fail("q_lora_rank", "a number: the indexer reads that latent");
  require_flag(c, "rope_interleave", true, "half-split rotations");
  Indexer indexer{c.whole_or("index_n_heads", default_heads), c.whole_or("index_head_dim", 128),
                  c.whole_or("index_topk", 2048)};
  RopeTable rope = *s.layers.front().rope;
  rope.interleaved = interleaved;
  if (2 * rope.inverse_frequencies.size() > indexer.head_dim) {
    c.fail("index_head_dim", "at least qk_rope_head_dim");
  }
  indexer.rope = std::make_shared<const RopeTable>(std::move(rope));
  for (LayerShape& layer : s.layers) layer.latent->indexer = indexer;
}

void refine_deepseek_v32(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  CorrectedExperts experts = deepseek_v3_experts;
  experts.listed_layers = true;
  read_latent_mixture(c, a, keys, {1536, 512, 128, 128}, experts);
  read_indexer(c, a.decoder, 64, false);
}

/// Layers that attend to the tokens that the layer below them does.
std::vector<bool> layers_with_shared_choice(const JsonObject& c, std::size_t layers) {
  constexpr const char* pattern = "index_topk_pattern";
  const std::uint64_t every = std::max<std::uint64_t>(c.whole_or("index_topk_freq", 1, 0), 1);
  const std::uint64_t first = c.whole_or("index_skip_topk_offset", 2, 0);
  std::function<bool(std::size_t)> usual = [&](std::size_t i) {
    return i + 1 > first && (i + 1 - first) % every != 0;
  };
  std::vector<bool> given;
  if (c.has(pattern) && c.at(pattern).is_string()) {
    const std::string letters = c.text(pattern);
    if (letters.size() != layers || letters.find_first_not_of("FS") != std::string::npos) {
      c.fail(pattern, fmt::format("{} letters F and S, one a layer", layers));
    }
    usual = [letters](std::size_t i) { return letters[i] == 'S'; };
  } else {
    given = layers_of_type(c, layers, "shared", usual, pattern, "full");
    usual = [&](std::size_t i) { return given[i]; };
  }
  return layers_of_type(c, layers, "shared", usual, "indexer_types", "full");
}

void refine_glm_moe_dsa(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  CorrectedExperts experts = deepseek_v3_experts;
  experts.groups = experts.groups_kept = 1;
  experts.listed_layers = true;
  read_latent_mixture(c, a, keys, {2048, 512, 192, 256}, experts);
  require_flag(c, "indexer_rope_interleave", true, "half-split rotations of the indexer");
  Stack& s = a.decoder;
  read_indexer(c, s, 32, true);
  const std::vector<bool> shared = layers_with_shared_choice(c, s.layers.size());
  if (shared.front()) c.fail("indexer_types", "\"full\" in the first layer");
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (shared[i]) s.layers[i].latent->indexer->num_heads = 0;
  }
}

/// DeepSeek V3's layers with a softmax, whose queries grow with the position.
void refine_mistral4(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  read_latent_mixture(
      c, a, keys, {1024, 256, 64, 128},
      {.experts = 128, .per_token = 4, .width = 2048, .dense_layers = 0, .scoring = "softmax"});
  Stack& s = a.decoder;
  for (LayerShape& layer : s.layers) {
    if (!layer.experts) continue;
    layer.experts->routing.score = Routing::Score::Softmax;
    layer.experts->router_correction = false;
  }
  const JsonObject rope = *rope_parameters(c);
  s.position_scale = rope.positive("llama_4_scaling_beta");
  s.position_floor = rope.positive("original_max_position_embeddings");
  const LayerShape& layer = s.layers.front();
  const double whole = static_cast<double>(layer.heads.head_dim);
  const double rotated = static_cast<double>(layer.latent->rope_dim);
  constexpr const char* share = "partial_rotary_factor";
  if (std::abs(rope.positive_or(share, rotated / whole) * whole - rotated) > 1e-6 * whole) {
    rope.fail(share, fmt::format("{}, qk_rope_head_dim of all dims", rotated / whole));
  }
  if (c.has("sliding_window")) c.fail("sliding_window", "null");
}

void refine_minicpm3(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  const std::uint64_t heads = a.decoder.layers.front().heads.num_attention_heads;
  read_latents(c, a, keys, {768, 256, 64, a.hidden_size / heads});
  a.embedding_scale = c.positive_or("scale_emb", 12);
  const auto layers = static_cast<double>(a.num_hidden_layers());
  const double depth =
      c.is_null("scale_depth") ? std::sqrt(layers) : c.positive_or("scale_depth", 1.4);
  a.decoder.branch_scale = depth / std::sqrt(layers);
  const auto hidden = static_cast<double>(a.hidden_size);
  const double base = c.is_null("dim_model_base") ? hidden : c.positive_or("dim_model_base", 256);
  a.logit_scale = base / hidden;
}
void name_latents(Family& f) {
  for (const char* part : {"query", "key", "value"}) f.names.in_layer.erase(part);
  f.names.in_layer = with(f.names.in_layer, {{"query_heads", "self_attn.q_proj"},
                                             {"query_latent", "self_attn.q_a_proj"},
                                             {"query_latent_norm", "self_attn.q_a_layernorm"},
                                             {"kv_latents", "self_attn.kv_a_proj_with_mqa"},
                                             {"kv_latent_norm", "self_attn.kv_a_layernorm"},
                                             {"kv_up", "self_attn.kv_b_proj"}});
  f.rename = [](const Architecture& a, std::string_view, CheckpointNames& names) {
    if (a.decoder.layers.front().latent->query_rank == 0) return;
    names.in_layer["query_heads"] = "self_attn.q_b_proj";
  };
}

}  // namespace

Family deepseek_v2() {
  Family f = llama_like("deepseek_v2");
  f.keys.mlp_bias = "mlp_bias";
  f.keys.head_dim = nullptr;
  f.keys.default_head_dim = 1;  // heads have the sizes of Latent
  f.keys.rope_dims = "qk_rope_head_dim";
  f.keys.default_rope_dims = 64;
  f.keys.unread = {"head_dim", "moe_layer_freq", "n_group", "topk_group", "aux_loss_alpha"};
  f.keys.interleaved_rope = true;
  f.keys.other_names = {{"n_routed_experts", "num_experts"}};
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_deepseek_v2(c, a, deepseek_v2().keys);
  };
  name_latents(f);
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_experts");
  f.gguf = deepseek_v2_form();
  return f;
}

/// Kimi K2 has its form.
Family deepseek_v3() {
  Family f = deepseek_v2();
  f.model_types = {"deepseek_v3", "kimi_k2"};
  f.keys.mlp_bias = nullptr;
  f.keys.other_names = {{"n_routed_experts", "num_local_experts"},
                        {"num_nextn_predict_layers", "num_mtp_layers"}};
  f.refine = [](const JsonObject& c, Architecture& a) {
    read_latent_mixture(c, a, deepseek_v3().keys, {1536, 512, 128, 128}, deepseek_v3_experts);
  };
  f.names.in_layer["router.correction"] = "mlp.gate.e_score_correction_bias";
  f.names.later_layers = true;
  f.gguf = deepseek_v3_form();
  return f;
}

/// DeepSeek V3 with an indexer that chooses the tokens that attention reads.
Family deepseek_v32() {
  Family f = deepseek_v3();
  f.model_types = {"deepseek_v32"};
  f.keys.unread.insert(f.keys.unread.end(), {"layer_types", "mlp_bias"});
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_deepseek_v32(c, a, deepseek_v32().keys);
  };
  f.names.in_layer = with(f.names.in_layer, {{"index_query", "self_attn.indexer.wq_b"},
                                             {"index_key", "self_attn.indexer.wk"},
                                             {"index_key_norm", "self_attn.indexer.k_norm"},
                                             {"index_weights", "self_attn.indexer.weights_proj"}});
  f.gguf = deepseek_v32_form();
  return f;
}

/// DeepSeek V3's layers in other sizes (GLM-4.7-Flash).
Family glm4_moe_lite() {
  Family f = deepseek_v3();
  f.model_types = {"glm4_moe_lite"};
  f.stack.norm_eps = 1e-5;
  f.refine = [](const JsonObject& c, Architecture& a) {
    read_latent_mixture(
        c, a, glm4_moe_lite().keys, {768, 512, 192, 256},
        {.experts = 64, .per_token = 4, .width = 1536, .scale = 1.8, .listed_layers = true});
  };
  f.gguf = {};
  return f;
}

/// DeepSeek V3.2's layers in other sizes (GLM-5); some attend to the tokens that the layer below
/// chose (GLM-5.2).
Family glm_moe_dsa() {
  Family f = deepseek_v32();
  f.model_types = {"glm_moe_dsa"};
  f.stack.norm_eps = 1e-5;
  f.keys.unread.insert(f.keys.unread.end(), {"index_share_for_mtp_iteration", "moe_router_dtype"});
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_glm_moe_dsa(c, a, glm_moe_dsa().keys);
  };
  f.gguf = {};
  return f;
}

Family mistral4() {
  Family f = deepseek_v3();
  f.model_types = {"mistral4"};
  f.stack.scales_rotated = true;
  f.stack.floor_offset = 0;
  f.keys.default_rope =
      R"({"type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0,
          "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
          "original_max_position_embeddings": 8192, "llama_4_scaling_beta": 0.1})";
  f.keys.unread.insert(f.keys.unread.end(), {"rope_parameters.partial_rotary_factor",
                                             "rope_scaling.partial_rotary_factor"});
  f.refine = [](const JsonObject& c, Architecture& a) { refine_mistral4(c, a, mistral4().keys); };
  for (const char* part : {"experts.gate", "experts.up", "experts.down"}) {
    f.names.in_layer.erase(part);
  }
  f.names.in_layer = with(f.names.in_layer, {{"experts.gate_up.weight", "mlp.experts.gate_up_proj"},
                                             {"experts.down.weight", "mlp.experts.down_proj"}});
  f.gguf = {};
  return f;
}

/// Sarvam 105B: DeepSeek V3 in other sizes.
Family sarvam_mla() {
  Family f = deepseek_v3();
  f.model_types = {"sarvam_mla"};
  f.keys.other_names.push_back({"n_routed_experts", "num_experts"});
  f.keys.other_names.push_back({"n_shared_experts", "num_shared_experts"});
  f.keys.unread.insert(f.keys.unread.end(), {"q_head_dim"});
  f.refine = [](const JsonObject& c, Architecture& a) {
    read_latent_mixture(c, a, sarvam_mla().keys, {0, 512, 128, 128},
                        {.experts = 128, .width = 2048, .scale = 2.5});
  };
  f.gguf = {};
  return f;
}

Family minicpm3() {
  Family f = llama_like("minicpm3");
  f.stack.norm_eps = 1e-5;
  f.keys.mlp_bias = "mlp_bias";
  f.keys.head_dim = nullptr;
  f.keys.default_head_dim = 1;  // as deepseek_v2
  f.keys.rope_dims = "qk_rope_head_dim";
  f.keys.default_rope_dims = 32;
  f.keys.unread = {"head_dim"};
  f.keys.default_tied = true;
  f.refine = [](const JsonObject& c, Architecture& a) { refine_minicpm3(c, a, minicpm3().keys); };
  name_latents(f);
  f.gguf = minicpm3_form();
  return f;
}

}  // namespace kvcast::families
