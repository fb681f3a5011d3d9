#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"
#include "model/families/mixture_parts.h"

namespace kvcast::families {
namespace {

/// [lowest, highest], which may be {"__float__": "Infinity"}.
void read_time_step_limit(const JsonObject& c, StateSpace& s) {
  if (!c.has("time_step_limit")) return;
  const nlohmann::json& limit = c.at("time_step_limit");
  const auto is_number = [](const nlohmann::json& l) { return l.is_number() && l >= 0; };
  const nlohmann::json infinity = {{"__float__", "Infinity"}};
  const bool fits = limit.is_array() && limit.size() == 2 && is_number(limit[0]) &&
                    (limit[1] == infinity || (is_number(limit[1]) && limit[1] >= limit[0]));
  if (!fits) c.fail("time_step_limit", "[lowest, highest], two numbers from 0 on");
  s.min_time_step = limit[0].get<double>();
  if (limit[1] != infinity) s.max_time_step = limit[1].get<double>();
}

/// Throws Error unless `parts` divides `whole`.
std::uint64_t divided(const JsonObject& c, std::string_view key, std::uint64_t whole,
                      std::uint64_t parts) {
  if (whole % parts != 0) c.fail(key, fmt::format("a divisor of {}", whole));
  return whole / parts;
}

/// A Mamba-2 mixer of this inner width; `heads` 0: required.
StateSpace read_mamba(const JsonObject& c, std::uint64_t inner, std::uint64_t heads) {
  StateSpace s;
  s.num_heads = heads > 0 ? c.whole_or("mamba_n_heads", heads) : c.whole("mamba_n_heads");
  s.num_groups = c.whole_or("mamba_n_groups", 1);
  divided(c, "mamba_n_groups", s.num_heads, s.num_groups);
  s.key_dim = c.whole_or("mamba_d_state", 256);
  s.value_dim = divided(c, "mamba_n_heads", inner, s.num_heads);
  const bool automatic = !c.has("mamba_d_head") || c.at("mamba_d_head") == "auto";
  if (!automatic && c.whole("mamba_d_head") != s.value_dim) {
    c.fail("mamba_d_head",
           fmt::format("{}: {} features of {} heads", s.value_dim, inner, s.num_heads));
  }
  s.kernel = c.whole_or("mamba_d_conv", 4);
  s.chunk = c.whole_or("mamba_chunk_size", 256);
  s.conv_bias = c.flag_or("mamba_conv_bias", true);
  s.projection_bias = s.output_bias = c.flag_or("mamba_proj_bias", false);
  s.norm_groups = s.num_groups;
  read_time_step_limit(c, s);
  return s;
}

void name_mamba(Family& f, const std::string& module) {
  f.names.in_layer = with(f.names.in_layer, {{"state.projections", module + "in_proj"},
                                             {"state.conv", module + "conv1d"},
                                             {"state.time_step_bias.weight", module + "dt_bias"},
                                             {"state.decay.weight", module + "A_log"},
                                             {"state.skip.weight", module + "D"},
                                             {"state.norm", module + "norm"},
                                             {"state.output", module + "out_proj"}});
  f.names.fused_states = {{"state.projections", {"gate", "value", "key", "query", "time_step"}},
                          {"state.conv", {"conv_value", "conv_key", "conv_query"}}};
}

/// The layer has this mixer and no attention.
void replace_attention(LayerShape& layer, const StateSpace& s) {
  layer.heads = {};
  layer.rope = nullptr;
  layer.state_space = s;
}

void refine_granitemoehybrid(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  refine_granite(c, a);
  const bool rotates = c.text_or("position_embedding_type", "nope") == "rope";
  const std::uint64_t experts = c.whole_or("num_local_experts", 8, 0);
  const std::uint64_t shared = c.whole_or("shared_intermediate_size", 1024);
  c.whole_or("num_experts_per_tok", 2, 0);  // 0 without experts
  const std::uint64_t inner = checked_multiply(c.whole_or("mamba_expand", 2), a.hidden_size);
  StateSpace mamba = read_mamba(c, inner, 128);
  mamba.activation = s.activation;
  const auto recurrent =
      layers_of_type(c, s.layers.size(), "linear_attention", [](std::size_t) { return true; });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    LayerShape& layer = s.layers[i];
    if (!rotates) layer.rope = nullptr;
    if (recurrent[i]) replace_attention(layer, mamba);
    if (experts > 0) {
      layer.experts = read_granite_experts(c);
      layer.experts->shared_intermediate_size = shared;
    } else {
      layer.intermediate_size = shared;
    }
  }
}

/// A list of so many numbers; without the key each is 1.
std::vector<double> multipliers(const JsonObject& c, std::string_view key, std::size_t count) {
  if (!c.has(key)) return std::vector<double>(count, 1);
  std::vector<double> read = c.positives(key);
  if (read.size() != count) c.fail(key, fmt::format("{} numbers", count));
  return read;
}

void refine_falcon_h1(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::uint64_t expanded = checked_multiply(c.whole_or("mamba_expand", 2), a.hidden_size);
  const std::uint64_t inner = c.is_null("mamba_d_ssm") ? expanded : c.whole_or("mamba_d_ssm", 1024);
  StateSpace mamba = read_mamba(c, inner, 128);
  mamba.activation = s.activation;
  mamba.output_bias = c.flag_or("projectors_bias", false);
  mamba.gate_before_norm = !c.flag_or("mamba_norm_before_gate", true);
  if (!c.flag_or("mamba_rms_norm", false)) mamba.norm_groups = 0;
  mamba.input_scale = c.positive_or("ssm_in_multiplier", 1);
  mamba.output_scale = c.positive_or("ssm_out_multiplier", 1);
  const auto parts = multipliers(c, "ssm_multipliers", 5);
  mamba.gate_scale = parts[0];
  mamba.value_scale = parts[1];
  mamba.key_scale = parts[2];
  mamba.query_scale = parts[3];
  mamba.time_step_scale = parts[4];
  for (LayerShape& layer : s.layers) layer.state_space = mamba;
  s.attention_input_scale = c.positive_or("attention_in_multiplier", 1);
  s.attention_output_scale = c.positive_or("attention_out_multiplier", 1);
  s.attention_scale *= c.positive_or("key_multiplier", 1);
  const auto mlp = multipliers(c, "mlp_multipliers", 2);
  s.gate_scale = mlp[0];
  s.mlp_scale = mlp[1];
  a.embedding_scale = c.positive_or("embedding_multiplier", 1);
  a.logit_scale = c.positive_or("lm_head_multiplier", 1);
}

/// Gated DeltaNet in all layers but each fourth.
void refine_qwen3_next(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  StateSpace net;
  net.delta = true;
  net.num_heads = c.whole_or("linear_num_value_heads", 32);
  net.num_groups = c.whole_or("linear_num_key_heads", 16);
  divided(c, "linear_num_key_heads", net.num_heads, net.num_groups);
  net.key_dim = c.whole_or("linear_key_head_dim", 128);
  net.value_dim = c.whole_or("linear_value_head_dim", 128);
  net.kernel = c.whole_or("linear_conv_kernel_dim", 4);
  net.chunk = 64;  // modeling_qwen3_next.py, torch_chunk_gated_delta_rule
  net.activation = s.activation;
  net.norm_groups = net.num_heads;
  net.shares_norm = true;
  net.gate_before_norm = false;
  require_flag(c, "attn_output_gate", true, "attentions without a gate");
  const std::uint64_t interval = c.whole_or("full_attention_interval", 4);
  const auto recurrent = layers_of_type(c, s.layers.size(), "linear_attention",
                                        [&](std::size_t i) { return (i + 1) % interval != 0; });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (recurrent[i]) replace_attention(s.layers[i], net);
  }
}

void refine_qwen3_next_moe(const JsonObject& c, Architecture& a) {
  refine_qwen3_next(c, a);
  Experts e = read_gated_experts(c, 512, 10, 512, 512);
  e.routing.normalizes = c.flag_or("norm_topk_prob", true);
  set_experts(a.decoder, e, sparse_layers(c, a.decoder.layers.size()));
}

void refine_qwen3_5_moe(const JsonObject& c, Architecture& a) {
  refine_qwen3_next(c, a);
  Experts e = read_gated_experts(c, 256, 8, 512, 512);
  e.routing.normalizes = true;
  set_experts(a.decoder, e);
}

/// Blocks of one mixer each: M Mamba-2, * attention, - an MLP, E experts.
std::vector<char> read_blocks(const JsonObject& c) {
  std::vector<char> blocks;
  if (c.has("hybrid_override_pattern") && !c.has("layers_block_type")) {
    for (const char block : c.text("hybrid_override_pattern")) blocks.push_back(block);
  } else {
    for (const std::string& type : c.texts("layers_block_type")) {
      const bool mamba = type == "linear_attention" || type == "mamba";
      const bool attention = type == "full_attention" || type == "attention";
      blocks.push_back(mamba           ? 'M'
                       : attention     ? '*'
                       : type == "mlp" ? '-'
                       : type == "moe" ? 'E'
                                       : '?');
    }
  }
  constexpr std::size_t most_blocks = 10000;  // as read_num_layers
  if (blocks.empty() || blocks.size() > most_blocks) blocks = {'?'};
  for (const char block : blocks) {
    if (std::string_view("M*-E").find(block) != std::string_view::npos) continue;
    c.fail(c.has("layers_block_type") ? "layers_block_type" : "hybrid_override_pattern",
           "1 to 10000 blocks of mamba (M), attention (*), mlp (-) and moe (E)");
  }
  return blocks;
}

Experts read_nemotron_experts(const JsonObject& c) {
  Experts e{.routing = read_routing(c, "n_routed_experts", 8, 2)};
  e.routing.score = Routing::Score::Sigmoid;
  e.routing.group_score = Routing::GroupScore::TwoLargest;
  e.routing.normalizes = c.flag_or("norm_topk_prob", true);
  e.routing.weight_scale = c.positive_or("routed_scaling_factor", 1);
  read_groups(c, e.routing, 1, 1);
  e.router_correction = true;
  e.intermediate_size = c.whole_or("moe_intermediate_size", 7688);
  e.shared_intermediate_size = c.whole_or("moe_shared_expert_intermediate_size", 7688);
  if (c.has("moe_latent_size")) c.fail("moe_latent_size", "null: latent experts are not modelled");
  return e;
}

void refine_nemotron_h(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::vector<char> blocks = read_blocks(c);
  StateSpace mamba;
  mamba.num_heads = c.whole_or("mamba_num_heads", 128);
  mamba.num_groups = c.whole_or("n_groups", 8);
  divided(c, "n_groups", mamba.num_heads, mamba.num_groups);
  mamba.key_dim = c.whole_or("ssm_state_size", 128);
  mamba.value_dim = c.whole_or("mamba_head_dim", 64);
  mamba.kernel = c.whole_or("conv_kernel", 4);
  mamba.chunk = c.whole_or("chunk_size", 128);
  mamba.conv_bias = c.flag_or("use_conv_bias", true);
  mamba.projection_bias = mamba.output_bias = c.flag_or("use_bias", false);
  mamba.activation = read_activation(c, "mamba_hidden_act", Function::Silu);
  mamba.norm_groups = mamba.num_groups;
  mamba.min_time_step = c.number_or("time_step_min", 0.001);
  if (mamba.min_time_step < 0) c.fail("time_step_min", "0 or more");
  a.tied_embeddings = false;  // transformers never ties them
  if (c.has("sliding_window")) c.fail("sliding_window", "null");
  const Experts experts = read_nemotron_experts(c);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    LayerShape& layer = s.layers[i];
    layer.rope = nullptr;
    if (blocks[i] != '-') layer.intermediate_size = 0;
    if (blocks[i] == 'E') layer.experts = experts;
    if (blocks[i] == 'M') {
      replace_attention(layer, mamba);
    } else if (blocks[i] != '*') {
      layer.heads = {};
    }
  }
}

/// Layers of each `period` from `offset` on.
std::vector<bool> periodic_layers(const JsonObject& c, const std::string& kind, std::size_t layers,
                                  std::uint64_t default_period, std::uint64_t default_offset) {
  const std::uint64_t period = c.whole_or(kind + "_layer_period", default_period);
  const std::uint64_t offset = c.whole_or(kind + "_layer_offset", default_offset, 0);
  if (offset >= period) {
    c.fail(kind + "_layer_offset", fmt::format("less than the period of {}", period));
  }
  std::vector<bool> found(layers);
  for (std::size_t i = 0; i < layers; ++i) found[i] = i % period == offset;
  return found;
}

/// Mamba-1 in all layers but one of eight, experts in every second.
void refine_jamba(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  StateSpace mamba;
  mamba.num_heads = checked_multiply(c.whole_or("mamba_expand", 2), a.hidden_size);
  mamba.num_groups = mamba.value_dim = 1;
  mamba.key_dim = c.whole_or("mamba_d_state", 16);
  mamba.kernel = c.whole_or("mamba_d_conv", 4);
  const bool automatic = !c.has("mamba_dt_rank") || c.at("mamba_dt_rank") == "auto";
  mamba.time_step_rank = automatic ? (a.hidden_size + 15) / 16 : c.whole("mamba_dt_rank");
  mamba.projection_norms = true;
  mamba.conv_bias = c.flag_or("mamba_conv_bias", true);
  mamba.projection_bias = mamba.output_bias = c.flag_or("mamba_proj_bias", false);
  mamba.activation = s.activation;
  mamba.norm_groups = 0;
  require_flag(c, "mamba_inner_layernorms", true, "mixers without norms");
  if (c.has("sliding_window")) c.fail("sliding_window", "null");
  const std::size_t layers = s.layers.size();
  const std::vector<bool> attends = periodic_layers(c, "attn", layers, 8, 4);
  const std::vector<bool> sparse = periodic_layers(c, "expert", layers, 2, 1);
  for (std::size_t i = 0; i < layers; ++i) {
    if (!attends[i]) replace_attention(s.layers[i], mamba);
  }
  if (c.whole_or("num_experts", 16) == 1) {
    c.whole_or("num_experts_per_tok", 2);  // of nothing
    return;
  }
  Experts e{.routing = read_routing(c, "num_experts", 16, 2)};
  e.intermediate_size = s.layers.front().intermediate_size;
  set_experts(s, e, sparse);
}

/// The width of LFM2's MLPs: two thirds of the key's, times a factor, rounded up to a multiple.
std::uint64_t read_lfm2_width(const JsonObject& c) {
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  const std::uint64_t given = c.whole_or("block_ff_dim", 12288);
  const bool adjusts = c.flag_or("block_auto_adjust_ff_dim", true);
  const bool scales = !c.is_null("block_ffn_dim_multiplier");
  const double factor = scales ? c.positive_or("block_ffn_dim_multiplier", 1) : 1;
  const std::uint64_t multiple = c.whole_or("block_multiple_of", 256);
  if (!adjusts) return given;
  if (given < 2 || given > most) c.fail("block_ff_dim", "a number from 2 to 2^40");
  const std::uint64_t width = 2 * given / 3;
  if (!scales) return width;
  const double scaled = factor * static_cast<double>(width);
  if (scaled < 1 || scaled > static_cast<double>(most) || multiple > most) {
    c.fail("block_ffn_dim_multiplier", "a factor to a width from 1 to 2^40");
  }
  return (static_cast<std::uint64_t>(scaled) + multiple - 1) / multiple * multiple;
}

/// A short convolution between two gates.
StateSpace read_short_convolution(const JsonObject& c, const Architecture& a) {
  StateSpace conv;
  conv.scans = false;
  conv.num_heads = a.hidden_size;
  conv.value_dim = 1;
  conv.kernel = c.whole_or("conv_L_cache", 3);
  conv.conv_bias = conv.projection_bias = conv.output_bias = c.flag_or("conv_bias", false);
  conv.norm_groups = 0;
  return conv;
}

/// Short convolutions, and attention in the layers that are named.
void refine_lfm2(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const StateSpace conv = read_short_convolution(c, a);
  const auto attends =
      listed_layers(c, "full_attn_idxs", s.layers.size(), [](std::size_t) { return true; });
  const auto convolves =
      layers_of_type(c, s.layers.size(), "conv", [&](std::size_t i) { return !attends[i]; });
  const std::uint64_t width = read_lfm2_width(c);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].intermediate_size = width;
    if (convolves[i]) replace_attention(s.layers[i], conv);
  }
}

/// The sum of the weights that normalises them has 1e-6 more in transformers, beside sums of
/// sigmoids.
void refine_lfm2_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const StateSpace conv = read_short_convolution(c, a);
  c.at("layer_types");  // the class has no rule without
  const auto convolves = layers_of_type(c, s.layers.size(), "conv", nullptr);
  Experts e{.routing = read_routing(c, "num_experts", 32, 4)};
  e.routing.score = Routing::Score::Sigmoid;
  e.routing.normalizes = c.flag_or("norm_topk_prob", true);
  e.routing.weight_scale = c.positive_or("routed_scaling_factor", 1);
  e.router_correction = c.flag_or("use_expert_bias", true);
  e.intermediate_size = c.whole_or("moe_intermediate_size", 1792);
  const std::uint64_t dense = c.whole_or("num_dense_layers", 2, 0);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (convolves[i]) replace_attention(s.layers[i], conv);
    if (i >= dense) s.layers[i].experts = e;
  }
}

Family qwen3_next_like(std::string_view model_type) {
  Family f = llama_like(model_type);
  f.stack.norm = NormKind::RmsUnitOffset;
  f.stack.query_key_norm = QueryKeyNorm::HeadsUnitOffset;
  f.stack.attention_gate = true;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 2;
  f.keys.default_head_dim = 256;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.25;
  f.names.in_layer.erase("query");
  const std::string module = "linear_attn.";
  f.names.in_layer = with(f.names.in_layer, {{"query_gates", "self_attn.q_proj"},
                                             {"query_norm", "self_attn.q_norm"},
                                             {"key_norm", "self_attn.k_norm"},
                                             {"state.conv", module + "conv1d"},
                                             {"state.time_step_bias.weight", module + "dt_bias"},
                                             {"state.decay.weight", module + "A_log"},
                                             {"state.norm", module + "norm"},
                                             {"state.output", module + "out_proj"}});
  f.names.fused_states = {{"state.conv", {"conv_query", "conv_key", "conv_value"}}};
  return f;
}

}  // namespace

Family granitemoehybrid() {
  Family f = granitemoe();
  f.model_types = {"granitemoehybrid"};
  f.stack.norm_eps = 1e-6;
  f.keys.other_names = {{"layer_types", "layers_block_type"}};
  f.refine = refine_granitemoehybrid;
  for (const char* part : {"gate", "up"}) f.names.in_layer.erase(part);
  f.names.in_layer = with(f.names.in_layer, {{"gate_up", "shared_mlp.input_linear"},
                                             {"down", "shared_mlp.output_linear"},
                                             {"shared_expert.gate_up", "shared_mlp.input_linear"},
                                             {"shared_expert.down", "shared_mlp.output_linear"}});
  name_mamba(f, "mamba.");
  f.gguf = granitehybrid_form();
  return f;
}

Family falcon_h1() {
  Family f = llama_like("falcon_h1");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.refine = refine_falcon_h1;
  f.names.in_layer = with(f.names.in_layer, {{"mlp_norm", "pre_ff_layernorm"},
                                             {"gate", "feed_forward.gate_proj"},
                                             {"up", "feed_forward.up_proj"},
                                             {"down", "feed_forward.down_proj"}});
  f.names.outside["final_norm"] = "final_layernorm";
  name_mamba(f, "mamba.");
  f.gguf = falcon_h1_form();
  return f;
}

/// Gated DeltaNet in three of four layers, gated attention in the fourth, experts in all.
Family qwen3_next() {
  Family f = qwen3_next_like("qwen3_next");
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.keys.unread = {"use_sliding_window"};
  f.refine = refine_qwen3_next_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_expert");
  f.names.in_layer["shared_expert.router"] = "mlp.shared_expert_gate";
  f.names.in_layer["state.qkvz"] = "linear_attn.in_proj_qkvz";
  f.names.in_layer["state.ba"] = "linear_attn.in_proj_ba";
  f.names.fused_states.push_back({"state.qkvz", {"query", "key", "value", "gate"}, true});
  f.names.fused_states.push_back({"state.ba", {"beta", "time_step"}, true});
  f.names.fused_states.push_back({"state.qkv", {"query", "key", "value"}});  // of GGUF files
  f.gguf = qwen3_next_form();
  return f;
}

/// Qwen3-Next with the projections of its mixers in tensors of their own. Text parts.
Family qwen3_5_text() {
  Family f = qwen3_next_like("qwen3_5_text");
  f.keys.default_key_value_heads = 4;
  f.refine = refine_qwen3_next;
  // mrope_section counts positions of images; mtp_ layers stand after the model's.
  f.keys.unread = {"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                   "mlp_only_layers"};
  f.names.in_layer = with(f.names.in_layer, {{"state.qkv", "linear_attn.in_proj_qkv"},
                                             {"state.gate", "linear_attn.in_proj_z"},
                                             {"state.beta", "linear_attn.in_proj_b"},
                                             {"state.time_step", "linear_attn.in_proj_a"}});
  f.names.fused_states.push_back({"state.qkv", {"query", "key", "value"}});
  f.gguf = qwen3_5_form();
  return f;
}

Family qwen3_5_moe_text() {
  Family f = qwen3_5_text();
  f.model_types = {"qwen3_5_moe_text"};
  f.keys.default_key_value_heads = 2;
  f.keys.intermediate_size = "moe_intermediate_size";
  f.refine = refine_qwen3_5_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_expert");
  f.names.in_layer["shared_expert.router"] = "mlp.shared_expert_gate";
  f.gguf = qwen3_5_moe_form();
  return f;
}

Family jamba() {
  Family f = llama_like("jamba");
  f.keys.default_key_value_heads = 8;
  f.keys.rope_theta = nullptr;
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.keys.unread = {"calc_logits_for_entire_prompt", "use_associative_scan", "use_mamba_kernels",
                   "use_mambapy"};
  f.refine = refine_jamba;
  const std::string module = "mamba.";
  f.names.in_layer =
      with(f.names.in_layer, {{"mlp_norm", "pre_ff_layernorm"},
                              {"gate", "feed_forward.gate_proj"},
                              {"up", "feed_forward.up_proj"},
                              {"down", "feed_forward.down_proj"},
                              {"state.projections", module + "in_proj"},
                              {"state.conv_value", module + "conv1d"},
                              {"state.of_values", module + "x_proj"},
                              {"state.time_step_latent_norm", module + "dt_layernorm"},
                              {"state.key_norm", module + "b_layernorm"},
                              {"state.query_norm", module + "c_layernorm"},
                              {"state.time_step", module + "dt_proj"},
                              {"state.time_step_bias.weight", module + "dt_proj.bias"},
                              {"state.decay.weight", module + "A_log"},
                              {"state.skip.weight", module + "D"},
                              {"state.output", module + "out_proj"}});
  f.names.fused_states = {{"state.projections", {"value", "gate"}},
                          {"state.of_values", {"time_step_latent", "key", "query"}}};
  f.names.outside["final_norm"] = "final_layernorm";
  name_experts(f, "feed_forward", "gate_proj", "up_proj", "down_proj");
  f.names.in_layer["router"] = "feed_forward.router";
  f.gguf = jamba_form();
  return f;
}

Family lfm2() {
  Family f = llama_like("lfm2");
  f.stack.norm_eps = 1e-5;
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.keys.norm_eps = "norm_eps";
  f.keys.activation = "feed_forward_activation";  // no such key: always SiLU
  f.keys.default_key_value_heads = 8;
  f.keys.default_rope_theta = 1000000;
  f.keys.default_tied = true;
  // As in transformers the older keys win where a file has both.
  f.keys.intermediate_size = "block_ff_dim";
  f.keys.tied_embeddings = "tie_embedding";
  f.keys.other_names = {{"block_ff_dim", "intermediate_size", true},
                        {"tie_embedding", "tie_word_embeddings", true}};
  f.keys.unread = {"block_dim",
                   "block_mlp_init_scale",
                   "block_norm_eps",
                   "block_out_init_scale",
                   "block_use_swiglu",
                   "block_use_xavier_init",
                   "conv_dim",
                   "conv_dim_out",
                   "conv_use_xavier_init",
                   "num_heads",
                   "theta",
                   "use_pos_enc"};
  f.refine = refine_lfm2;
  f.names.in_layer = with(f.names.in_layer, {{"attention_output", "self_attn.out_proj"},
                                             {"query_norm", "self_attn.q_layernorm"},
                                             {"key_norm", "self_attn.k_layernorm"},
                                             {"attention_norm", "operator_norm"},
                                             {"mlp_norm", "ffn_norm"},
                                             {"gate", "feed_forward.w1"},
                                             {"up", "feed_forward.w3"},
                                             {"down", "feed_forward.w2"},
                                             {"state.projections", "conv.in_proj"},
                                             {"state.conv_value", "conv.conv"},
                                             {"state.output", "conv.out_proj"}});
  f.names.fused_states = {{"state.projections", {"input_gate", "gate", "value"}}};
  f.names.outside["final_norm"] = "embedding_norm";
  f.gguf = lfm2_form();
  return f;
}

/// LFM2 with experts after the first layers.
Family lfm2_moe() {
  Family f = lfm2();
  f.model_types = {"lfm2_moe"};
  f.keys.intermediate_size = "intermediate_size";
  f.keys.other_names = {{"tie_embedding", "tie_word_embeddings", true}};
  f.keys.unread = {};
  f.refine = refine_lfm2_moe;
  name_experts(f, "feed_forward", "w1", "w3", "w2");
  f.names.in_layer["router.correction"] = "feed_forward.expert_bias";
  f.gguf = lfm2_moe_form();
  return f;
}

Family nemotron_h() {
  Family f = llama_like("nemotron_h");
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::SquaredRelu;
  f.keys.norm_eps = "layer_norm_epsilon";
  f.keys.activation = "mlp_hidden_act";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.other_names = {{"layers_block_type", "layer_types"},
                        {"head_dim", "attention_head_dim"},
                        {"n_routed_experts", "num_local_experts"}};
  f.keys.count_layers = [](const JsonObject& c) {
    return static_cast<std::uint64_t>(read_blocks(c).size());
  };
  f.keys.unread = {"attention_bias",
                   "num_hidden_layers",
                   "expand",
                   "hybrid_override_pattern",
                   "mamba_proj_bias",
                   "mamba_ssm_cache_dtype",
                   "moe_shared_expert_overlap",
                   "mtp_layers_block_type",
                   "n_shared_experts",
                   "num_nextn_predict_layers",
                   "rescale_prenorm_residual",
                   "residual_in_fp32",
                   "rms_norm_eps",
                   "time_step_floor",
                   "time_step_limit",
                   "time_step_max",
                   "use_mamba_kernels"};
  f.refine = refine_nemotron_h;
  f.names.prefixes = {"model.", "backbone.", ""};
  const std::string module = "mixer.";
  f.names.in_layer = {{"attention_norm", "norm"},
                      {"mlp_norm", "norm"},
                      {"query", module + "q_proj"},
                      {"key", module + "k_proj"},
                      {"value", module + "v_proj"},
                      {"attention_output", module + "o_proj"},
                      {"up", module + "up_proj"},
                      {"down", module + "down_proj"},
                      {"router.correction", module + "gate.e_score_correction_bias"}};
  name_mamba(f, module);
  name_experts(f, "mixer", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mixer.shared_experts");
  f.names.outside = {{"embedding", "embeddings"}, {"final_norm", "norm_f"}};
  f.gguf = nemotron_h_form();
  return f;
}

}  // namespace kvcast::families
