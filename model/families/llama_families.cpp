#include <cmath>

#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"

namespace kvcast::families {
namespace {

void refine_llama(const JsonObject& c, Architecture&) { refuse_experts(c); }

void refine_mistral(const JsonObject& c, Architecture& a) {
  const std::uint64_t window = sliding_window(c, default_window);
  for (LayerShape& layer : a.decoder.layers) layer.sliding_window = window;
  read_windows(a.decoder, c, window);
  refine_llama(c, a);
}

void refine_qwen2(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  const std::uint64_t window = used_sliding_window(c, default_window);
  // The first max_window_layers layers have no window.
  const std::uint64_t first = c.whole_or("max_window_layers", 28, 0);
  for (std::uint64_t i = first; i < s.layers.size(); ++i) s.layers[i].sliding_window = window;
  read_windows(s, c, window);
  refine_llama(c, a);
}

void refine_olmo(const JsonObject& c, Architecture& a) {
  if (c.has("clip_qkv")) a.decoder.projection_clip = c.positive("clip_qkv");
  refine_llama(c, a);
}

void refine_gemmas(const JsonObject& c, Architecture& a) {
  refuse_experts(c);
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
}

void refine_gemma(const JsonObject& c, Architecture& a) {
  refine_gemmas(c, a);
  // The first configs say "gelu" where the model was trained with the tanh form.
  if (c.text_or("hidden_act", "") == "gelu") a.decoder.activation = Function::GeluTanh;
}

void refine_gemma2(const JsonObject& c, Architecture& a) {
  refine_gemmas(c, a);
  const auto softcap = [&](const char* cap, double fallback) {
    return c.is_null(cap) ? 0 : c.positive_or(cap, fallback);
  };
  Stack& s = a.decoder;
  s.attention_softcap = softcap("attn_logit_softcapping", 50);
  a.logit_softcap = softcap("final_logit_softcapping", 30);
  s.attention_scale = 1 / std::sqrt(c.positive_or("query_pre_attn_scalar", 256));
  const std::uint64_t window = sliding_window(c, default_window);
  for (std::size_t i = 0; i < s.layers.size(); i += 2) s.layers[i].sliding_window = window;
  read_windows(s, c, window);
}

void complete_gemma2(const GgufReader& r, nlohmann::json& c) {
  // llama.cpp's own defaults: files of the first days lack the three.
  c["attn_logit_softcapping"] = r.number_or("attn_logit_softcapping", 50);
  c["final_logit_softcapping"] = r.number_or("final_logit_softcapping", 30);
  c["sliding_window"] = r.whole_or("attention.sliding_window", 4096);
  // No key says it. All of the family scale by the head's size but the 27B model, 46 layers, which
  // llama.cpp too tells by their number (src/models/gemma2.cpp).
  constexpr std::uint64_t layers_of_27b = 46;
  const std::uint64_t heads = r.whole("attention.head_count");
  const bool is_27b = r.num_layers() == layers_of_27b && heads > 0;
  c["query_pre_attn_scalar"] = is_27b ? r.whole("embedding_length") / heads : r.head_dim();
}

void refine_helium(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  refuse_experts(c);
  s.query_bias = s.key_bias = s.value_bias = c.flag_or("attention_bias", false);
  if (query_features(s.layers.front().heads) != a.hidden_size) {
    c.fail("head_dim", "hidden_size / num_attention_heads");
  }
}

}  // namespace

Family llama() {
  Family f = llama_like("llama");
  f.stack.clamps_masked_scores = true;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  return f;
}

/// A GGUF file does not tell it from Llama. Ministral has windows by layer_types.
Family mistral() {
  Family f = llama_like("mistral");
  f.model_types.push_back("ministral");
  f.keys.default_key_value_heads = 8;
  f.refine = refine_mistral;
  return f;
}

/// Mistral whose rotations are stretched and whose queries grow with the position.
Family ministral3() {
  Family f = llama_like("ministral3");
  f.stack.norm_eps = 1e-5;
  f.stack.scales_rotated = true;
  f.stack.floor_offset = 0;
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.default_rope =
      R"({"type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "mscale": 1.0,
          "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384,
          "llama_4_scaling_beta": 0.1})";
  f.keys.unread = {"layer_types"};
  f.refine = [](const JsonObject& c, Architecture& a) {
    const std::uint64_t window = sliding_window(c, 0);
    for (LayerShape& layer : a.decoder.layers) layer.sliding_window = window;
    const JsonObject rope = *rope_parameters(c, nullptr);
    a.decoder.position_scale = rope.positive("llama_4_scaling_beta");
    a.decoder.position_floor = rope.positive("original_max_position_embeddings");
  };
  f.gguf = {};
  return f;
}

/// Windows in all layers but the first of each four.
Family cwm() {
  Family f = llama_like("cwm");
  f.stack.norm_eps = 1e-5;
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 1000000;
  f.keys.default_rope =
      R"({"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
  f.keys.unread = {"attention_bias"};
  f.refine = [](const JsonObject& c, Architecture& a) {
    read_windows(a.decoder, c, sliding_window(c, 8192), [](std::size_t i) { return i % 4 != 0; });
  };
  f.gguf = {};
  return f;
}

/// llama.cpp's files of it say Llama.
Family internlm3() {
  Family f = llama_like("internlm3");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 2;
  f.keys.default_head_dim = 128;
  f.keys.other_names = {{"attention_bias", "qkv_bias"}, {"mlp_bias", "bias"}};
  f.refine = [](const JsonObject& c, Architecture& a) {
    refuse_experts(c);
    // As in transformers.
    if (a.decoder.query_bias == a.decoder.mlp_bias) return;
    c.fail(c.has("mlp_bias") ? "mlp_bias" : "attention_bias",
           "one value for attention_bias and mlp_bias");
  };
  f.gguf = {};
  return f;
}

/// EXAONE 3.
Family exaone() {
  Family f = llama_like("exaone");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_rope_theta = 500000;
  f.keys.other_names = {{"num_hidden_layers", "num_layers"},
                        {"rms_norm_eps", "layer_norm_epsilon"},
                        {"hidden_act", "activation_function"}};
  f.names.prefixes = {"transformer.", ""};
  f.names.layer = "h.";
  f.names.in_layer = {{"query", "attn.attention.q_proj"},
                      {"key", "attn.attention.k_proj"},
                      {"value", "attn.attention.v_proj"},
                      {"attention_output", "attn.attention.out_proj"},
                      {"attention_norm", "ln_1"},
                      {"mlp_norm", "ln_2"},
                      {"gate", "mlp.c_fc_0"},
                      {"up", "mlp.c_fc_1"},
                      {"down", "mlp.c_proj"}};
  f.names.outside = {{"embedding", "wte"}, {"final_norm", "ln_f"}};
  f.gguf = {.architecture = "exaone"};
  return f;
}

Family helium() {
  Family f = llama_like("helium");
  f.stack.norm_eps = 1e-8;
  f.keys.mlp_bias = "mlp_bias";
  f.keys.default_key_value_heads = 20;
  f.keys.default_head_dim = 128;
  f.keys.default_rope_theta = 100000;
  f.keys.interleaved_rope = true;
  f.refine = refine_helium;
  f.gguf = {};
  return f;
}

Family qwen2() {
  Family f = llama_like("qwen2");
  f.stack.query_bias = f.stack.key_bias = f.stack.value_bias = true;
  f.keys.default_key_value_heads = 32;
  f.refine = refine_qwen2;
  f.gguf = {.architecture = "qwen2", .other_architecture = "qwen2vl"};
  f.keys.unread = {"use_mrope"};  // the same positions, for text
  return f;
}

Family olmo() {
  Family f = llama_like("olmo");
  f.stack.norm = NormKind::LayerPlain;
  f.stack.norm_eps = 1e-5;  // fixed in modeling_olmo.py
  f.keys.norm_eps = nullptr;
  f.keys.attention_bias = "attention_bias";
  f.refine = refine_olmo;
  f.gguf.architecture = "olmo";
  f.gguf.complete = [](const GgufReader& r, nlohmann::json& c) {
    const double clamp = r.number_or("attention.clamp_kqv", 0);
    if (clamp != 0) c["clip_qkv"] = clamp;
  };
  return f;
}

Family phi3() {
  Family f = llama_like("phi3");
  f.stack.norm_eps = 1e-5;
  f.keys.rotary_share = "partial_rotary_factor";
  f.keys.default_original_context = 4096;
  f.keys.unread = {"attention_bias", "full_attn_mod", "interpolate_factor",
                   "lm_head_bias",   "mlp_bias",      "original_max_position_embeddings"};
  f.refine = [](const JsonObject& c, Architecture& a) {
    refuse_experts(c);
    for (LayerShape& layer : a.decoder.layers) layer.sliding_window = sliding_window(c, 0);
  };
  for (const char* part : {"query", "key", "value", "gate", "up"}) f.names.in_layer.erase(part);
  f.names.in_layer =
      with(f.names.in_layer, {{"qkv", "self_attn.qkv_proj"}, {"gate_up", "mlp.gate_up_proj"}});
  f.gguf = phi3_form();
  return f;
}

Family gemma() {
  Family f = llama_like("gemma");
  f.stack.norm = NormKind::RmsUnitOffset;
  f.stack.activation = Function::GeluTanh;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 16;
  f.keys.default_head_dim = 256;
  f.keys.default_tied = true;
  f.refine = refine_gemma;
  f.gguf = {.architecture = "gemma"};
  f.keys.unread = {"hidden_activation"};
  return f;
}

Family gemma2() {
  Family f = gemma();
  f.model_types = {"gemma2"};
  f.stack.post_norms = true;
  f.keys.activation = "hidden_activation";
  f.keys.default_key_value_heads = 4;
  f.refine = refine_gemma2;
  f.names.in_layer = with(f.names.in_layer, {{"post_attention_norm", "post_attention_layernorm"},
                                             {"mlp_norm", "pre_feedforward_layernorm"},
                                             {"post_mlp_norm", "post_feedforward_layernorm"}});
  f.gguf = {.architecture = "gemma2", .complete = complete_gemma2};
  return f;
}

/// Gemma 2 without the norms behind the branches.
Family vaultgemma() {
  Family f = gemma2();
  f.model_types = {"vaultgemma"};
  f.stack.post_norms = false;
  for (const char* part : {"post_attention_norm", "post_mlp_norm"}) f.names.in_layer.erase(part);
  f.gguf = {};
  return f;
}

}  // namespace kvcast::families
