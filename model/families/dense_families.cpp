#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"

namespace kvcast::families {
namespace {

/// Every `pattern`-th layer, the last of each group; 0: none.
auto every(std::uint64_t pattern) {
  return [pattern](std::size_t i) { return pattern > 0 && (i + 1) % pattern == 0; };
}

/// Qwen2's rule: with use_sliding_window the layers from max_window_layers on have one.
void refine_qwen3(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::uint64_t window = used_sliding_window(c, default_window);
  const std::uint64_t first = c.whole_or("max_window_layers", 28, 0);
  read_windows(s, c, window, [&](std::size_t i) { return window > 0 && i >= first; });
}

void refine_exaone4(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::uint64_t window = sliding_window(c, default_window);
  constexpr const char* key = "sliding_window_pattern";
  const bool spelt = window > 0 && c.has(key) && c.at(key).is_string();
  // Without windows the class sets the pattern to 0.
  const std::uint64_t pattern = spelt ? 0 : c.whole_or(key, 4, window > 0 ? 1 : 0);
  const std::string letters = spelt ? c.text(key) : "";
  if (spelt && (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)) {
    c.fail(key, "a number of layers, or letters L (with a window) and G such as \"LLLG\"");
  }
  const auto usual = [&](std::size_t i) {
    if (!spelt) return window > 0 && (i + 1) % pattern != 0;
    // As the class read it before it had layer_types: the last layer has no window.
    return i + 1 < s.layers.size() && letters[i % letters.size()] == 'L';
  };
  const auto sliding = read_windows(s, c, window, usual);
  // With windows the other layers do not rotate.
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (window > 0 && !sliding[i]) s.layers[i].rope = nullptr;
  }
}

void refine_smollm3(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const auto plain = every(c.whole_or("no_rope_layer_interval", 4, 0));
  const auto rotates =
      layer_flags(c, "no_rope_layers", s.layers.size(), [&](std::size_t i) { return !plain(i); });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (!rotates[i]) s.layers[i].rope = nullptr;
  }
  const bool uses_windows = c.flag_or("use_sliding_window", false);
  read_windows(s, c, sliding_window(c, 0),
               [&](std::size_t i) { return uses_windows && !rotates[i]; });
}

void refine_cohere(const JsonObject& c, Architecture& a) {
  a.logit_scale = c.positive_or("logit_scale", 0.0625);
}

void refine_cohere2(const JsonObject& c, Architecture& a) {
  refine_cohere(c, a);
  Stack& s = a.decoder;
  const std::uint64_t window = sliding_window(c, default_window);
  const auto full = every(c.whole_or("sliding_window_pattern", 4));
  const auto sliding = read_windows(s, c, window, [&](std::size_t i) { return !full(i); });
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (!sliding[i]) s.layers[i].rope = nullptr;
  }
}

void refine_stablelm(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("use_qkv_bias", false);
  if (c.flag_or("qk_layernorm", false)) s.query_key_norm = QueryKeyNorm::LayerHeads;
  if (c.flag_or("use_parallel_residual", false)) s.residual = Residual::ParallelOneNorm;
}

/// Layers with windows, rotations of their own base there; else full ones. Returns which have one.
std::vector<bool> read_gemma_windows(const JsonObject& c, Stack& s, const ConfigKeys& keys,
                                     std::uint64_t pattern, std::uint64_t usual_window) {
  const auto full = every(pattern);
  const auto sliding =
      read_windows(s, c, sliding_window(c, usual_window), [&](std::size_t i) { return !full(i); });
  ConfigKeys local = keys;
  local.rope_layer_type = "sliding_attention";
  local.rope_theta = "rope_local_base_freq";
  local.default_rope_theta = 10000;
  const auto rope = read_rope(c, local, s.layers.front().heads.head_dim);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (sliding[i]) s.layers[i].rope = rope;
  }
  return sliding;
}

void refine_gemma3(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  if (c.has("final_logit_softcapping")) a.logit_softcap = c.positive("final_logit_softcapping");
  // transformers reads the key and does not use it.
  c.number_or("attn_logit_softcapping", 0);
  Stack& s = a.decoder;
  s.attention_scale = 1 / std::sqrt(c.positive_or("query_pre_attn_scalar", 256));
  read_gemma_windows(c, s, keys, c.whole_or("sliding_window_pattern", 6), default_window);
}

/// The last num_kv_shared_layers layers read the keys and values of the last layer before them that
/// has their kind of attention.
void read_kv_sharing(const JsonObject& c, Stack& s, const std::vector<bool>& sliding) {
  constexpr const char* key = "num_kv_shared_layers";
  const std::uint64_t shared = c.whole_or(key, 15, 0);
  if (shared >= s.layers.size()) {
    c.fail(key, fmt::format("fewer than the {} layers", s.layers.size()));
  }
  const std::size_t owners = s.layers.size() - shared;
  for (std::size_t i = owners; i < s.layers.size(); ++i) {
    std::size_t owner = owners;
    while (owner > 0 && sliding[owner - 1] != sliding[i]) --owner;
    if (owner == 0) {
      c.fail(key,
             fmt::format("a layer of layer {}'s kind of attention among the first {}", i, owners));
    }
    s.layers[i].kv_layer = owner - 1;
  }
}

/// Where the standard normal distribution reaches the share p, in (0, 1).
double normal_quantile(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < p ? low : high) = middle;
  }
  return low;
}

/// Shares of the gates that are cut off, taken as normally distributed.
void read_gate_cutoffs(const JsonObject& c, Stack& s) {
  constexpr const char* key = "activation_sparsity_pattern";
  const std::size_t layers = s.layers.size();
  if (!c.has(key)) {
    // Of models of more than ten layers the first ten.
    for (std::size_t i = 0; layers > 10 && i < 10; ++i) {
      s.layers[i].gate_cutoff = normal_quantile(0.95);
    }
    return;
  }
  const nlohmann::json& shares = c.at(key);
  const std::string expected = fmt::format("{} numbers from 0 to below 1, one a layer", layers);
  if (!shares.is_array() || shares.size() != layers) c.fail(key, expected);
  for (std::size_t i = 0; i < layers; ++i) {
    const double share = shares[i].is_number() ? shares[i].get<double>() : -1;
    if (!(share >= 0 && share < 1)) c.fail(key, expected);
    if (share > 0) s.layers[i].gate_cutoff = normal_quantile(share);
  }
}

void refine_gemma3n(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  const char* const softcap = "final_logit_softcapping";
  a.logit_softcap = c.is_null(softcap) ? 0 : c.positive_or(softcap, 30);
  Stack& s = a.decoder;
  s.attention_scale = 1;
  read_kv_sharing(c, s, read_gemma_windows(c, s, keys, 5, 512));
  read_gate_cutoffs(c, s);
  AltUp form;
  form.num_streams = c.whole_or("altup_num_inputs", 4);
  if (form.num_streams > 1024) c.fail("altup_num_inputs", "at most 1024 streams");
  form.active = c.whole_or("altup_active_idx", 0, 0);
  if (form.active >= form.num_streams) {
    c.fail("altup_active_idx", fmt::format("one of the {} streams", form.num_streams));
  }
  form.scales_active = c.flag_or("altup_correct_scale", true);
  form.laurel_rank = c.whole_or("laurel_rank", 64);
  form.layer_features = c.whole_or("hidden_size_per_layer_input", 256);
  form.layer_rows = c.whole_or("vocab_size_per_layer_input", 262144);
  form.table_layers = s.layers.size();
  s.altup = form;
}

/// Rotations are scaled in layers without a window.
void refine_olmo3(const JsonObject& c, Architecture& a, const ConfigKeys& keys) {
  Stack& s = a.decoder;
  const auto full = every(4);
  const auto sliding = read_windows(s, c, sliding_window(c, default_window),
                                    [&](std::size_t i) { return !full(i); });
  // Releases of transformers differ in the base of the layers with windows.
  if (c.positive_or("rope_theta", keys.default_rope_theta) != keys.default_rope_theta) {
    c.fail("rope_theta", "500000, or a base for each layer type in rope_parameters");
  }
  ConfigKeys local = keys;
  local.rope_layer_type = "sliding_attention";
  const auto rope = read_rope(c, local, s.layers.front().heads.head_dim);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    if (sliding[i]) s.layers[i].rope = rope;
  }
}

/// Norms after the branches alone.
void use_post_norms(Family& f) {
  f.stack.pre_norms = false;
  f.stack.post_norms = true;
  f.names.in_layer.erase("attention_norm");
  f.names.in_layer.erase("mlp_norm");
  f.names.in_layer = with(f.names.in_layer, {{"post_attention_norm", "post_attention_layernorm"},
                                             {"post_mlp_norm", "post_feedforward_layernorm"}});
}

void use_query_key_norm(Family& f, QueryKeyNorm kind) {
  f.stack.query_key_norm = kind;
  f.names.in_layer = with(f.names.in_layer,
                          {{"query_norm", "self_attn.q_norm"}, {"key_norm", "self_attn.k_norm"}});
}

}  // namespace

Family qwen3() {
  Family f = llama_like("qwen3");
  use_query_key_norm(f, QueryKeyNorm::Heads);
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 32;
  f.keys.default_head_dim = 128;
  f.refine = refine_qwen3;
  f.gguf = {.architecture = "qwen3", .other_architecture = "qwen3vl"};
  return f;
}

/// Llama with norms of query and key heads, and xIELU in the place of a gated MLP.
Family apertus() {
  Family f = llama_like("apertus");
  use_query_key_norm(f, QueryKeyNorm::Heads);
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::Xielu;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_rope_theta = 12000000;
  f.keys.default_rope =
      R"({"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
  f.keys.unread = {"mlp_bias"};
  // Keys of the published files that transformers takes for granted.
  f.refine = [](const JsonObject& c, Architecture&) {
    require_flag(c, "qk_norm", true, "queries and keys without norms");
    require_flag(c, "post_norm", false, "norms behind the branches");
  };
  f.names.in_layer.erase("gate");
  f.names.in_layer = with(f.names.in_layer, {{"attention_norm", "attention_layernorm"},
                                             {"mlp_norm", "feedforward_layernorm"},
                                             {"alpha_p.weight", "mlp.act_fn.alpha_p"},
                                             {"alpha_n.weight", "mlp.act_fn.alpha_n"}});
  f.gguf = {};
  return f;
}

Family olmo2() {
  Family f = llama_like("olmo2");
  use_post_norms(f);
  use_query_key_norm(f, QueryKeyNorm::Whole);
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.refine = nullptr;
  f.gguf = olmo2_form();
  return f;
}

/// OLMo 2 with windows in three layers of four.
Family olmo3() {
  Family f = olmo2();
  f.model_types = {"olmo3"};
  f.keys.default_rope_theta = 500000;
  f.keys.rope_layer_type = "full_attention";
  f.refine = [](const JsonObject& c, Architecture& a) { refine_olmo3(c, a, olmo3().keys); };
  f.gguf = olmo3_form();
  return f;
}

Family exaone4() {
  Family f = llama_like("exaone4");
  use_post_norms(f);
  use_query_key_norm(f, QueryKeyNorm::Heads);
  f.stack.norm_eps = 1e-5;
  f.keys.default_key_value_heads = 32;
  f.refine = refine_exaone4;
  f.gguf = exaone4_form();
  return f;
}

Family smollm3() {
  Family f = llama_like("smollm3");
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 4;
  f.keys.default_tied = true;
  f.keys.default_rope_theta = 2000000;
  f.keys.unread = {"max_window_layers"};
  f.refine = refine_smollm3;
  f.gguf = smollm3_form();
  return f;
}

Family granite() {
  Family f = llama_like("granite");
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.refine = refine_granite;
  f.gguf = granite_form();
  return f;
}

Family cohere() {
  Family f = llama_like("cohere");
  f.stack.norm = NormKind::LayerScale;
  f.stack.norm_eps = 1e-5;
  f.stack.residual = Residual::ParallelOneNorm;
  use_query_key_norm(f, QueryKeyNorm::None);
  f.keys.norm_eps = "layer_norm_eps";
  f.keys.attention_bias = "attention_bias";
  f.keys.default_tied = true;
  f.keys.default_rope_theta = 500000;
  f.keys.interleaved_rope = true;
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_cohere(c, a);
    if (c.flag_or("use_qk_norm", false)) a.decoder.query_key_norm = QueryKeyNorm::LayerHeads;
  };
  f.gguf = cohere_form();
  return f;
}

/// Windows with rotations, every fourth layer neither.
Family cohere2() {
  Family f = cohere();
  f.model_types = {"cohere2"};
  f.keys.default_rope_theta = 10000;
  f.keys.unread = {"order_of_interleaved_layers",
                   "rotary_pct",
                   "position_embedding_type",
                   "layer_switch",
                   "use_embedding_sharing",
                   "use_gated_activation",
                   "use_parallel_block",
                   "use_parallel_embedding",
                   "use_qk_norm"};
  f.refine = refine_cohere2;
  f.gguf = cohere2_form();
  return f;
}

Family starcoder2() {
  Family f = llama_like("starcoder2");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::GeluTanh;
  f.stack.query_bias = f.stack.mlp_bias = true;
  f.keys.norm_eps = "norm_epsilon";
  f.keys.unread = {
      "activation_function", "attention_softmax_in_fp32",       "layer_norm_epsilon", "mlp_type",
      "norm_type",           "scale_attention_softmax_in_fp32", "scale_attn_weights"};
  f.keys.attention_bias = f.keys.mlp_bias = "use_bias";
  f.keys.default_key_value_heads = 2;
  f.keys.default_tied = true;
  f.refine = [](const JsonObject& c, Architecture& a) {
    for (LayerShape& layer : a.decoder.layers) layer.sliding_window = sliding_window(c, 0);
  };
  f.names.in_layer.erase("gate");
  f.names.in_layer = with(f.names.in_layer, {{"up", "mlp.c_fc"}, {"down", "mlp.c_proj"}});
  f.gguf = starcoder2_form();
  return f;
}

Family nemotron() {
  Family f = llama_like("nemotron");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::SquaredRelu;
  f.keys.norm_eps = "norm_eps";
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.5;
  f.refine = nullptr;
  f.names.in_layer.erase("gate");
  f.names.norm_offset = 1;  // NemotronLayerNorm1P
  f.gguf = {.architecture = "nemotron"};
  return f;
}

Family jais2() {
  Family f = llama_like("jais2");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::SquaredRelu;
  f.stack.query_bias = f.stack.mlp_bias = true;
  f.keys.norm_eps = "layer_norm_eps";
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.names.in_layer.erase("gate");
  f.gguf = {.architecture = "jais2"};
  return f;
}

Family stablelm() {
  Family f = llama_like("stablelm");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.keys.norm_eps = "layer_norm_eps";
  f.keys.default_key_value_heads = 32;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.25;
  f.keys.unread = {"norm_eps", "rotary_scaling_factor", "use_norm_bias"};
  f.refine = refine_stablelm;
  f.names.in_layer = with(f.names.in_layer, {{"query_norm", "self_attn.q_layernorm.norms.{i}"},
                                             {"key_norm", "self_attn.k_layernorm.norms.{i}"}});
  f.gguf = stablelm_form();
  return f;
}

Family phi() {
  Family f = llama_like("phi");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.stack.residual = Residual::ParallelOneNorm;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::GeluTanh;
  f.stack.query_bias = f.stack.key_bias = f.stack.value_bias = true;
  f.stack.attention_output_bias = f.stack.mlp_bias = true;
  f.keys.norm_eps = "layer_norm_eps";
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.5;
  f.refine = [](const JsonObject& c, Architecture& a) {
    a.head_bias = true;
    if (c.flag_or("qk_layernorm", false)) {
      a.decoder.query_key_norm = QueryKeyNorm::LayerHeadsShared;
    }
  };
  f.names.in_layer.erase("gate");
  f.names.in_layer = with(f.names.in_layer, {{"attention_output", "self_attn.dense"},
                                             {"query_norm", "self_attn.q_layernorm"},
                                             {"key_norm", "self_attn.k_layernorm"},
                                             {"up", "mlp.fc1"},
                                             {"down", "mlp.fc2"}});
  f.names.outside["final_norm"] = "final_layernorm";
  f.gguf = phi_form();
  return f;
}

/// Norms before and after the branches.
Family glm4() {
  Family f = llama_like("glm4");
  f.stack.post_norms = true;
  f.stack.norm_eps = 1.5625e-07;
  f.keys.default_key_value_heads = 2;
  f.keys.default_head_dim = 128;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_rotary_share = 0.5;
  f.keys.interleaved_rope = true;
  f.refine = [](const JsonObject& c, Architecture& a) {
    Stack& s = a.decoder;
    s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", true);
  };
  for (const char* part : {"gate", "up"}) f.names.in_layer.erase(part);
  f.names.in_layer = with(f.names.in_layer, {{"post_attention_norm", "post_self_attn_layernorm"},
                                             {"post_mlp_norm", "post_mlp_layernorm"},
                                             {"gate_up", "mlp.gate_up_proj"}});
  f.gguf = glm4_form();
  return f;
}

/// GLM-4-9B: glm4 without the norms after the branches. llama.cpp's files of it are another
/// family's, chatglm.
Family glm() {
  Family f = glm4();
  f.model_types = {"glm"};
  f.stack.post_norms = false;
  for (const char* part : {"post_attention_norm", "post_mlp_norm"}) f.names.in_layer.erase(part);
  f.gguf = {};
  return f;
}

Family seed_oss() {
  Family f = llama_like("seed_oss");
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.refine = [](const JsonObject& c, Architecture& a) {
    Stack& s = a.decoder;
    s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", true);
    s.attention_output_bias = c.flag_or("attention_out_bias", false);
  };
  f.gguf = seed_oss_form();
  return f;
}

Family ernie4_5() {
  Family f = llama_like("ernie4_5");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = f.keys.mlp_bias = "use_bias";
  f.keys.default_key_value_heads = 2;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 500000;
  f.keys.default_tied = true;
  f.keys.interleaved_rope = true;
  f.refine = nullptr;
  f.gguf = ernie4_5_form();
  return f;
}

Family arcee() {
  Family f = llama_like("arcee");
  f.stack.norm_eps = 1e-5;
  f.stack.gated_mlp = false;
  f.stack.activation = Function::SquaredRelu;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.refine = nullptr;
  f.names.in_layer.erase("gate");
  f.gguf = arcee_form();
  return f;
}

/// Windows with rotations of their own base; every sixth layer sees all.
Family gemma3_text() {
  Family f = gemma2();
  f.model_types = {"gemma3_text"};
  use_query_key_norm(f, QueryKeyNorm::HeadsUnitOffset);
  f.keys.default_rope_theta = 1000000;
  f.keys.rope_layer_type = "full_attention";
  f.refine = [](const JsonObject& c, Architecture& a) { refine_gemma3(c, a, gemma3_text().keys); };
  f.gguf = gemma3_form();
  return f;
}

/// Gemma 3's attention, the last layers on keys and values of earlier ones, in streams.
Family gemma3n_text() {
  Family f = gemma3_text();
  f.model_types = {"gemma3n_text"};
  f.stack.norm = NormKind::Rms;
  f.stack.query_key_norm = QueryKeyNorm::Heads;
  f.stack.value_norm = true;
  f.keys.default_key_value_heads = 2;
  f.keys.default_max_positions = 32768;
  f.keys.listed_mlp_widths = true;
  // The first clips coefficients in training; the others are of published files.
  f.keys.unread = {"altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"};
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_gemma3n(c, a, gemma3n_text().keys);
  };
  f.names.in_layer = with(f.names.in_layer, {{"altup.router", "altup.modality_router"},
                                             {"altup.router_norm", "altup.router_norm"},
                                             {"altup.prediction", "altup.prediction_coefs"},
                                             {"altup.correction", "altup.correction_coefs"},
                                             {"altup.scale.weight", "altup.correct_output_scale"},
                                             {"laurel.left", "laurel.linear_left"},
                                             {"laurel.right", "laurel.linear_right"},
                                             {"laurel_norm", "laurel.post_laurel_norm"},
                                             {"layer_input.gate", "per_layer_input_gate"},
                                             {"layer_input.projection", "per_layer_projection"},
                                             {"layer_input_norm", "post_per_layer_input_norm"}});
  f.names.outside =
      with(f.names.outside, {{"layer_inputs", "embed_tokens_per_layer"},
                             {"layer_inputs_projection", "per_layer_model_projection"},
                             {"layer_inputs_norm", "per_layer_projection_norm"}});
  f.rename = [](const Architecture& a, std::string_view, CheckpointNames& names) {
    for (std::uint64_t i = 1; i < a.decoder.altup->num_streams; ++i) {
      const std::string number = std::to_string(i);
      const std::string stored = std::to_string(i - 1);
      names.outside["stream." + number] = "altup_projections." + stored;
      names.outside["unstream." + number] = "altup_unembed_projections." + stored;
    }
  };
  f.gguf = gemma3n_form();
  return f;
}

}  // namespace kvcast::families
