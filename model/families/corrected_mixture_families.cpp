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
  const auto later = [&](std::size_t i) { return i >= first; };
  const std::size_t layers = a.decoder.layers.size();
  std::vector<bool> sparse(layers);
  for (std::size_t i = 0; i < layers; ++i) sparse[i] = later(i);
  if (d.listed_layers)
    sparse = layers_of_type(c, layers, "sparse", later, "mlp_layer_types", "dense");
  set_experts(a.decoder, e, sparse);
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
  const auto sliding = layers_of_type(c, s.layers.size(), "sliding_attention",
                                      [&](std::size_t i) { return i >= first; });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (s.layers[i].experts) s.layers[i].experts->routing.normalizes = normalizes;
    s.layers[i].sliding_window = sliding[i] ? window : 0;
  }
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

}  // namespace kvcast::families
