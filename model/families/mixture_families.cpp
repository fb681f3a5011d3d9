#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"
#include "model/families/mixture_parts.h"

namespace kvcast::families {

using nlohmann::json;

Routing read_routing(const JsonObject& c, const char* experts, std::uint64_t default_experts,
                     std::uint64_t default_per_token) {
  Routing r;
  r.num_experts = c.whole_or(experts, default_experts);
  r.num_experts_per_tok = default_per_token > 0
                              ? c.whole_or("num_experts_per_tok", default_per_token)
                              : c.whole("num_experts_per_tok");
  if (r.num_experts > 65536) c.fail(experts, "at most 65536 experts");
  if (r.num_experts_per_tok > r.num_experts) {
    c.fail("num_experts_per_tok", "at most the " + std::to_string(r.num_experts) + " experts");
  }
  return r;
}

std::vector<bool> sparse_layers(const JsonObject& c, std::size_t layers) {
  const std::uint64_t step = c.whole_or("decoder_sparse_step", 1);
  std::vector<bool> sparse =
      listed_layers(c, "mlp_only_layers", layers, [](std::size_t) { return false; });
  for (std::size_t i = 0; i < layers; ++i) sparse[i] = !sparse[i] && (i + 1) % step == 0;
  return sparse;
}

void read_groups(const JsonObject& c, Routing& r, std::uint64_t default_groups,
                 std::uint64_t default_kept) {
  r.groups = c.whole_or("n_group", default_groups);
  r.groups_kept = c.whole_or("topk_group", default_kept);
  if (r.num_experts % r.groups != 0) {
    c.fail("n_group", "a divisor of the " + std::to_string(r.num_experts) + " experts");
  }
  const std::uint64_t size = r.num_experts / r.groups;
  if (r.groups_kept > r.groups || r.groups_kept * size < r.num_experts_per_tok) {
    c.fail("topk_group", "groups enough for num_experts_per_tok, at most n_group");
  }
  if (r.group_score == Routing::GroupScore::TwoLargest && size < 2 && r.groups > 1) {
    c.fail("n_group", "groups of at least 2 experts");
  }
}

void set_experts(Stack& s, const Experts& e, const std::vector<bool>& with_experts) {
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (with_experts[i]) s.layers[i].experts = e;
  }
}

void set_experts(Stack& s, const Experts& e) {
  set_experts(s, e, std::vector<bool>(s.layers.size(), true));
}

Experts read_gated_experts(const JsonObject& c, std::uint64_t experts, std::uint64_t per_token,
                           std::uint64_t width, std::uint64_t shared_width) {
  Experts e{.routing = read_routing(c, "num_experts", experts, per_token)};
  e.intermediate_size = c.whole_or("moe_intermediate_size", width);
  e.shared_intermediate_size = c.whole_or("shared_expert_intermediate_size", shared_width);
  e.shared_gate = true;
  return e;
}

void require_text(const JsonObject& c, std::string_view key, const std::string& value) {
  if (c.text_or(key, value) != value) c.fail(key, value);
}

namespace {

void set_window(Stack& s, std::uint64_t window) {
  for (LayerShape& layer : s.layers) layer.sliding_window = window;
}

void refine_mixtral(const JsonObject& c, Architecture& a) {
  Experts e{.routing = read_routing(c, "num_local_experts", 8, 2)};
  e.routing.normalizes = true;
  e.intermediate_size = c.whole("intermediate_size");
  set_experts(a.decoder, e);
  set_window(a.decoder, sliding_window(c, 0));
}

void refine_qwen3_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "num_experts", 128, 8)};
  e.routing.normalizes = c.flag_or("norm_topk_prob", false);
  e.intermediate_size = c.whole_or("moe_intermediate_size", 768);
  set_experts(s, e, sparse_layers(c, s.layers.size()));
  set_window(s, used_sliding_window(c, 4096));
}

void refine_qwen3_vl_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "num_experts", 60, 4)};
  require_flag(c, "norm_topk_prob", true, "weights of experts that do not add up to 1");
  e.routing.normalizes = true;
  e.intermediate_size = c.whole_or("moe_intermediate_size", 1408);
  set_experts(s, e, sparse_layers(c, s.layers.size()));
}

/// Qwen3's mixtures and an expert for all tokens with a gate of its own.
void refine_qwen2_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e = read_gated_experts(c, 60, 4, 1408, 5632);
  e.routing.normalizes = c.flag_or("norm_topk_prob", false);
  set_experts(s, e, sparse_layers(c, s.layers.size()));
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("qkv_bias", true);
  // transformers writes 0 where the window is not used.
  const std::uint64_t given = c.whole_or("sliding_window", 4096, 0);
  const std::uint64_t window = c.flag_or("use_sliding_window", false) ? given : 0;
  const std::uint64_t end = c.whole_or("max_window_layers", 28, 0);
  read_windows(s, c, window, [&](std::size_t i) { return window > 0 && i % 2 == 0 && i < end; });
}

void refine_olmoe(const JsonObject& c, Architecture& a) {
  Experts e{.routing = read_routing(c, "num_experts", 64, 8)};
  e.routing.normalizes = c.flag_or("norm_topk_prob", false);
  e.intermediate_size = c.whole("intermediate_size");
  set_experts(a.decoder, e);
  if (c.has("clip_qkv")) a.decoder.projection_clip = c.positive("clip_qkv");
}

void refine_minimax_m2(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "num_local_experts", 256, 8)};
  e.routing.score = Routing::Score::Sigmoid;
  e.routing.normalizes = true;
  e.router_correction = true;
  e.intermediate_size = c.whole("intermediate_size");
  set_experts(s, e);
  // An older key, of which transformers makes the share where no other says it.
  const std::optional<JsonObject> rope = rope_parameters(c);
  if (c.has("rotary_dim") && !c.has(keys.rotary_share) && !(rope && rope->has(keys.rotary_share))) {
    const std::uint64_t head_dim = s.layers.front().heads.head_dim;
    ConfigKeys own = keys;
    own.default_rotary_share =
        static_cast<double>(c.whole("rotary_dim")) / static_cast<double>(head_dim);
    const auto table = read_rope(c, own, head_dim);
    for (LayerShape& layer : s.layers) layer.rope = table;
  }
  // Keys of the published files that transformers takes for granted.
  require_text(c, "scoring_func", "sigmoid");
  require_text(c, "qk_norm_type", "per_layer");
  require_flag(c, "use_qk_norm", true, "queries and keys without norms");
  require_flag(c, "use_routing_bias", true, "routers without correction");
  if (c.whole_or("shared_intermediate_size", 0, 0) > 0) c.fail("shared_intermediate_size", "0");
}

void refine_granitemoe(const JsonObject& c, Architecture& a) {
  refine_granite(c, a);
  set_experts(a.decoder, read_granite_experts(c));
}

void refine_gpt_oss(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "num_local_experts", 128, 4)};
  e.routing.score = Routing::Score::SoftmaxOfBest;
  e.intermediate_size = c.whole("intermediate_size");
  e.router_bias = e.mlp_bias = true;
  e.gate_limit = c.positive_or("swiglu_limit", 7);
  e.gate_alpha = c.positive_or("swiglu_alpha", 1.702);
  set_experts(s, e);
  read_windows(s, c, sliding_window(c, 128), [](std::size_t i) { return i % 2 == 0; });
}

void refine_llama4(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::size_t layers = s.layers.size();
  Experts e{.routing = read_routing(c, "num_local_experts", 16, 1)};
  e.routing.score = Routing::Score::Sigmoid;
  e.intermediate_size = e.shared_intermediate_size = c.whole("intermediate_size");
  e.weighs_input = true;
  const std::uint64_t step = c.whole_or("interleave_moe_layer_step", 1);
  const auto sparse =
      listed_layers(c, "moe_layers", layers, [&](std::size_t i) { return (i + 1) % step == 0; });
  const std::uint64_t dense_width = c.whole_or("intermediate_size_mlp", 16384);
  for (LayerShape& layer : s.layers) layer.intermediate_size = dense_width;
  set_experts(s, e, sparse);

  const std::uint64_t interval = c.whole_or("no_rope_layer_interval", 4);
  const auto rotates = [&](std::size_t i) { return (i + 1) % interval != 0; };
  // An empty list is the default's.
  const bool listed = c.has("no_rope_layers") && !c.at("no_rope_layers").empty();
  std::vector<bool> rotated(layers);
  for (std::size_t i = 0; i < layers; ++i) rotated[i] = rotates(i);
  if (listed) rotated = layer_flags(c, "no_rope_layers", layers, rotates);
  const std::uint64_t chunk =
      c.is_null("attention_chunk_size") ? 0 : c.whole_or("attention_chunk_size", 8192);
  const auto chunked =
      layers_of_type(c, layers, "chunked_attention", [&](std::size_t i) { return rotated[i]; });
  for (std::size_t i = 0; i < layers; ++i) {
    if (!rotated[i]) s.layers[i].rope = nullptr;
    if (chunked[i]) s.layers[i].attention_chunk = chunk;
  }
  if (c.flag_or("use_qk_norm", true)) s.query_key_norm = QueryKeyNorm::RotatedHeads;
  // Hub files say 4 for yes.
  const bool counted =
      c.has("attn_temperature_tuning") && c.at("attn_temperature_tuning").is_number();
  if (counted ? c.whole("attn_temperature_tuning", 0) > 0
              : c.flag_or("attn_temperature_tuning", true)) {
    s.position_scale = c.positive_or("attn_scale", 0.1);
    s.position_floor = c.positive_or("floor_scale", 8192);
  }
}

}  // namespace

Experts read_granite_experts(const JsonObject& c) {
  Experts e{.routing = read_routing(c, "num_local_experts", 8, 2)};
  e.routing.score = Routing::Score::SoftmaxOfBest;
  e.intermediate_size = c.whole("intermediate_size");
  return e;
}

void name_experts(Family& f, const std::string& module, const char* gate, const char* up,
                  const char* down) {
  const std::string expert = module + ".experts.{i}.";
  f.names.in_layer = with(f.names.in_layer, {{"router", module + ".gate"},
                                             {"experts.gate", expert + gate},
                                             {"experts.up", expert + up},
                                             {"experts.down", expert + down}});
}

void name_shared_expert(Family& f, const std::string& module) {
  f.names.in_layer = with(f.names.in_layer, {{"shared_expert.gate", module + ".gate_proj"},
                                             {"shared_expert.up", module + ".up_proj"},
                                             {"shared_expert.down", module + ".down_proj"}});
}

Family mixtral() {
  Family f = llama_like("mixtral");
  f.stack.norm_eps = 1e-5;
  f.keys.default_key_value_heads = 8;
  f.keys.default_rope_theta = 1000000;
  f.keys.other_names = {{"num_local_experts", "num_experts"}};
  f.refine = refine_mixtral;
  name_experts(f, "block_sparse_moe", "w1", "w3", "w2");
  f.gguf = mixtral_form();
  return f;
}

Family qwen3_moe() {
  Family f = qwen3();
  f.model_types = {"qwen3_moe"};
  f.keys.default_key_value_heads = 4;
  f.keys.default_head_dim = 0;
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.keys.unread = {"layer_types", "max_window_layers", "qkv_bias",
                   "shared_expert_intermediate_size", "use_qk_norm"};
  f.refine = refine_qwen3_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  f.gguf = qwen3_moe_form();
  return f;
}

/// The text part, its experts in two tensors a layer. GGUF files of it are Qwen3's mixtures.
Family qwen3_vl_moe_text() {
  Family f = qwen3_moe();
  f.model_types = {"qwen3_vl_moe_text"};
  f.keys.default_key_value_heads = 16;
  f.keys.default_rope_theta = 500000;
  f.keys.unread.push_back("sliding_window");
  f.refine = refine_qwen3_vl_moe;
  for (const char* part : {"experts.gate", "experts.up"}) f.names.in_layer.erase(part);
  f.names.in_layer["experts.gate_up.weight"] = "mlp.experts.gate_up_proj";
  f.names.in_layer["experts.down.weight"] = "mlp.experts.down_proj";
  f.names.experts_transposed = f.names.experts_either_way = true;
  f.gguf = {};
  return f;
}

Family qwen2_moe() {
  Family f = llama_like("qwen2_moe");
  f.keys.default_key_value_heads = 16;
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.refine = refine_qwen2_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_expert");
  f.names.in_layer["shared_expert.router"] = "mlp.shared_expert_gate";
  f.gguf = qwen2_moe_form();
  return f;
}

Family olmoe() {
  Family f = llama_like("olmoe");
  f.stack.norm_eps = 1e-5;
  f.stack.query_key_norm = QueryKeyNorm::Whole;
  f.names.in_layer = with(f.names.in_layer,
                          {{"query_norm", "self_attn.q_norm"}, {"key_norm", "self_attn.k_norm"}});
  f.keys.attention_bias = "attention_bias";
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.refine = refine_olmoe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  f.gguf = olmoe_form();
  return f;
}

Family minimax_m2() {
  Family f = llama_like("minimax_m2");
  f.stack.query_key_norm = QueryKeyNorm::Whole;
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 5000000;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.other_names = {{"num_local_experts", "num_experts"}};
  f.keys.unread = {"mtp_transformer_layers", "num_mtp_modules", "rotary_dim", "use_mtp"};
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_minimax_m2(c, a, minimax_m2().keys);
  };
  f.names.in_layer =
      with(f.names.in_layer, {{"query_norm", "self_attn.q_norm"},
                              {"key_norm", "self_attn.k_norm"},
                              {"router.correction", "block_sparse_moe.e_score_correction_bias"}});
  name_experts(f, "block_sparse_moe", "w1", "w3", "w2");
  f.gguf = minimax_m2_form();
  return f;
}

Family granitemoe() {
  Family f = granite();
  f.model_types = {"granitemoe"};
  f.keys.mlp_bias = nullptr;
  f.refine = refine_granitemoe;
  f.names.in_layer = with(f.names.in_layer, {{"router", "block_sparse_moe.router.layer"},
                                             {"experts.gate_up", "block_sparse_moe.input_linear"},
                                             {"experts.down", "block_sparse_moe.output_linear"}});
  f.gguf = granitemoe_form();
  return f;
}

Family gpt_oss() {
  Family f = llama_like("gpt_oss");
  f.stack.norm_eps = 1e-5;
  f.stack.attention_sinks = true;
  f.stack.query_bias = true;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 64;
  f.keys.default_rope_theta = 150000;
  f.keys.default_rope = R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "truncate": false,
                            "original_max_position_embeddings": 4096})";
  f.keys.other_names = {{"num_local_experts", "num_experts"}};
  f.keys.unread = {"experts_per_token"};  // beside num_experts_per_tok
  f.refine = refine_gpt_oss;
  f.names.in_layer =
      with(f.names.in_layer, {{"sinks.weight", "self_attn.sinks"},
                              {"router", "mlp.router"},
                              {"experts.gate_up.weight", "mlp.experts.gate_up_proj"},
                              {"experts.gate_up.bias", "mlp.experts.gate_up_proj_bias"},
                              {"experts.down.weight", "mlp.experts.down_proj"},
                              {"experts.down.bias", "mlp.experts.down_proj_bias"}});
  f.names.experts_transposed = f.names.experts_interleaved = true;
  f.gguf = gpt_oss_form();
  return f;
}

Family llama4_text() {
  Family f = llama_like("llama4_text");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 500000;
  f.keys.interleaved_rope = true;
  f.refine = refine_llama4;
  f.names.prefixes = {"model.", "language_model.model.", ""};
  f.names.in_layer =
      with(f.names.in_layer, {{"gate", "feed_forward.gate_proj"},
                              {"up", "feed_forward.up_proj"},
                              {"down", "feed_forward.down_proj"},
                              {"router", "feed_forward.router"},
                              {"experts.gate_up.weight", "feed_forward.experts.gate_up_proj"},
                              {"experts.down.weight", "feed_forward.experts.down_proj"}});
  name_shared_expert(f, "feed_forward.shared_expert");
  f.names.experts_transposed = true;
  f.gguf = llama4_form();
  return f;
}

}  // namespace kvcast::families
