// Decoder-only families. Sources: transformers, models/FAMILY/{configuration,modeling}_FAMILY.py;
// OpenELM: apple/corenet, corenet/modeling/models/language_modeling/general_gpt.py.
#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "model/config/config_families.h"

namespace kvcast::config {
namespace {

/// The entries that most decoder-only families spell alike.
Architecture read_common(const JsonObject& c) {
  Architecture a;
  a.hidden_size = c.whole("hidden_size");
  a.vocab_size = c.whole("vocab_size");
  a.max_position_embeddings = c.whole_or("max_position_embeddings", 0);
  return a;
}

void use_rope(Stack& s, const JsonObject& c, double theta, std::uint64_t rotary_dims) {
  s.position = Position::Rope;
  s.rope = read_rope(c, theta, rotary_dims);
}

std::uint64_t sliding_window(const JsonObject& c) {
  return c.has("sliding_window") ? c.whole("sliding_window") : 0;
}

/// Llama's shape: RMSNorm, RoPE, gated MLP, sequential residual.
Architecture read_llama_like(const JsonObject& c, const char* activation_key,
                             const char* activation, const HeadKeys& keys = {}) {
  if (c.whole_or("num_local_experts", 1) > 1) {
    c.fail("num_local_experts", "1: mixtures of experts are not modelled");
  }
  Architecture a = read_common(c);
  Stack& s = a.decoder;
  LayerShape layer;
  layer.heads = read_heads(c, keys);
  layer.intermediate_size = c.whole("intermediate_size");
  s.layers.assign(read_num_layers(c, "num_hidden_layers"), layer);
  s.norm_eps = c.positive_or("rms_norm_eps", 1e-6);
  s.attention_scale = inverse_root(layer.heads.head_dim);
  s.gated_mlp = true;
  s.activation = read_activation(c, activation_key, activation);
  const double rotary_share = c.positive_or("partial_rotary_factor", 1);
  if (rotary_share > 1) c.fail("partial_rotary_factor", "a share of the head from 0 to 1");
  const auto rotary_dims =
      static_cast<std::uint64_t>(static_cast<double>(layer.heads.head_dim) * rotary_share);
  use_rope(s, c, c.positive_or("rope_theta", 10000), rotary_dims);
  return a;
}

/// Which layers have the window, from transformers' `layer_types`; nothing to do for older configs.
void read_layer_types(Stack& s, const JsonObject& c, std::uint64_t window) {
  if (!c.has("layer_types")) return;
  const nlohmann::json& types = c.at("layer_types");
  const std::string expected = std::to_string(s.layers.size()) +
                               " entries \"full_attention\" or \"sliding_attention\", one a layer";
  if (!types.is_array() || types.size() != s.layers.size()) c.fail("layer_types", expected);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const bool sliding = types[i] == "sliding_attention";
    if (!sliding && types[i] != "full_attention") c.fail("layer_types", expected);
    s.layers[i].sliding_window = sliding ? window : 0;
  }
}

/// transformers' defaults of Mistral (8), Qwen2 (32), Gemma (16) and Gemma 2 (4), Gemmas with heads
/// of 256; Llama's and OLMo's key-value heads are as many as their heads.
HeadKeys head_defaults(const std::string& model_type) {
  HeadKeys keys;
  if (model_type == "mistral") keys.default_key_value_heads = 8;
  if (model_type == "qwen2") keys.default_key_value_heads = 32;
  if (model_type == "gemma") keys.default_key_value_heads = 16;
  if (model_type == "gemma2") keys.default_key_value_heads = 4;
  if (model_type == "gemma" || model_type == "gemma2") keys.default_head_dim = 256;
  return keys;
}

void set_qkv_bias(Stack& s, bool bias) { s.query_bias = s.key_bias = s.value_bias = bias; }

}  // namespace

Architecture read_llama(const JsonObject& c) {
  const std::string type = c.text("model_type");
  Architecture a = read_llama_like(c, "hidden_act", "silu", head_defaults(type));
  Stack& s = a.decoder;
  s.clamps_masked_scores = type == "llama";
  a.tied_embeddings = c.flag_or("tie_word_embeddings", false);
  const bool bias = c.flag_or("attention_bias", false);
  set_qkv_bias(s, bias || type == "qwen2");
  s.attention_output_bias = bias;
  s.mlp_bias = c.flag_or("mlp_bias", false);
  if (type == "olmo") {
    s.norm = NormKind::LayerPlain;
    s.norm_eps = 1e-5;  // fixed in modeling_olmo.py
    if (c.has("clip_qkv")) c.fail("clip_qkv", "null: clipped projections are not modelled");
  }
  const bool windowed =
      type == "mistral" || (type == "qwen2" && c.flag_or("use_sliding_window", false));
  if (windowed) {
    const std::uint64_t window = sliding_window(c);
    // Qwen2 leaves the first max_window_layers layers unwindowed.
    const std::uint64_t first = type == "qwen2" ? c.whole_or("max_window_layers", 28, 0) : 0;
    for (std::uint64_t i = first; i < s.layers.size(); ++i) s.layers[i].sliding_window = window;
    if (type == "qwen2") read_layer_types(s, c, window);
  }
  read_shared_key_values(s, c);
  return a;
}

Architecture read_phi3(const JsonObject& c) {
  Architecture a = read_llama_like(c, "hidden_act", "silu");
  a.tied_embeddings = c.flag_or("tie_word_embeddings", false);
  for (LayerShape& layer : a.decoder.layers) layer.sliding_window = sliding_window(c);
  return a;
}

Architecture read_gemma(const JsonObject& c) {
  const char* key = c.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  Architecture a =
      read_llama_like(c, key, "gelu_pytorch_tanh", head_defaults(c.text("model_type")));
  Stack& s = a.decoder;
  // Gemma's first configs say "gelu" where the model was trained with the tanh form.
  s.activation = Function::GeluTanh;
  s.norm = NormKind::RmsUnitOffset;
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  a.embedding_scale = std::sqrt(static_cast<double>(a.hidden_size));
  const bool bias = c.flag_or("attention_bias", false);
  set_qkv_bias(s, bias);
  s.attention_output_bias = bias;
  if (c.text("model_type") == "gemma2") {
    s.post_norms = true;
    const auto softcap = [&](const char* cap, double fallback) {
      return c.is_null(cap) ? 0 : c.positive_or(cap, fallback);
    };
    s.attention_softcap = softcap("attn_logit_softcapping", 50);
    a.logit_softcap = softcap("final_logit_softcapping", 30);
    s.attention_scale = 1 / std::sqrt(c.positive_or("query_pre_attn_scalar", 256));
    const std::uint64_t window =
        c.is_null("sliding_window") ? 0 : c.whole_or("sliding_window", 4096);
    for (std::size_t i = 0; i < s.layers.size(); i += 2) s.layers[i].sliding_window = window;
    read_layer_types(s, c, window);
  }
  return a;
}

Architecture read_gpt_neox(const JsonObject& c) {
  Architecture a = read_common(c);
  Stack& s = a.decoder;
  LayerShape layer;
  layer.heads = read_heads(c);
  layer.intermediate_size = c.whole("intermediate_size");
  s.layers.assign(read_num_layers(c, "num_hidden_layers"), layer);
  s.norm = NormKind::Layer;
  s.norm_eps = c.positive_or("layer_norm_eps", 1e-5);
  s.residual =
      c.flag_or("use_parallel_residual", true) ? Residual::ParallelTwoNorms : Residual::Sequential;
  s.attention_scale = inverse_root(layer.heads.head_dim);
  const bool bias = c.flag_or("attention_bias", true);
  set_qkv_bias(s, bias);
  s.attention_output_bias = bias;
  s.mlp_bias = true;
  s.activation = read_activation(c, "hidden_act", "gelu");
  a.tied_embeddings = c.flag_or("tie_word_embeddings", false);
  const double rotary_share = c.positive_or("rotary_pct", 0.25);
  if (rotary_share > 1) c.fail("rotary_pct", "a share of the head from 0 to 1");
  const auto rotary_dims =
      static_cast<std::uint64_t>(static_cast<double>(layer.heads.head_dim) * rotary_share);
  use_rope(s, c, c.positive_or("rotary_emb_base", 10000), rotary_dims);
  if (c.text("model_type") == "gpt_neox_mlkv") c.whole("num_key_value_layers");  // must be there
  read_shared_key_values(s, c);
  return a;
}

Architecture read_openelm(const JsonObject& c) {
  Architecture a;
  a.hidden_size = c.whole("model_dim");
  a.vocab_size = c.whole("vocab_size");
  a.max_position_embeddings = c.whole_or("max_context_length", 2048);
  a.tied_embeddings = c.flag_or("share_input_output_layers", true);
  Stack& s = a.decoder;
  const std::uint64_t num_layers = read_num_layers(c, "num_transformer_layers");
  const std::uint64_t head_dim = c.whole("head_dim");
  const std::vector<std::uint64_t> query_heads = c.wholes("num_query_heads");
  const std::vector<std::uint64_t> kv_heads = c.wholes("num_kv_heads");
  const std::vector<double> multipliers = c.positives("ffn_multipliers");
  const std::uint64_t divisor = c.whole_or("ffn_dim_divisor", 256);
  const auto check_length = [&](std::size_t length, const char* key) {
    if (length != num_layers) c.fail(key, std::to_string(num_layers) + " entries, one a layer");
  };
  check_length(query_heads.size(), "num_query_heads");
  check_length(kv_heads.size(), "num_kv_heads");
  check_length(multipliers.size(), "ffn_multipliers");
  if (*std::max_element(multipliers.begin(), multipliers.end()) > 1000) {
    c.fail("ffn_multipliers", "multiples of model_dim up to 1000");
  }
  for (std::size_t i = 0; i < num_layers; ++i) {
    if (query_heads[i] % kv_heads[i] != 0) c.fail("num_kv_heads", "divisors of num_query_heads");
    // corenet's make_divisible: the nearest multiple, but not below 90 % of the value.
    const double value = static_cast<double>(a.hidden_size) * multipliers[i];
    const auto rounded = static_cast<std::uint64_t>(value + static_cast<double>(divisor) / 2);
    std::uint64_t width = std::max(divisor, rounded / divisor * divisor);
    if (static_cast<double>(width) < 0.9 * value) width += divisor;
    s.layers.push_back({{query_heads[i], kv_heads[i], head_dim}, width, 0});
  }
  s.norm_eps = 1e-6;  // corenet's rms_norm.py
  s.query_key_norm = c.flag_or("normalize_qk_projections", true);
  s.attention_scale = inverse_root(head_dim);
  s.gated_mlp = c.flag_or("ffn_with_glu", true);
  s.activation = read_activation(c, "activation_fn_name", "swish");
  use_rope(s, c, c.positive_or("rope_freq_constant", 10000), head_dim);
  return a;
}

Architecture read_falcon(const JsonObject& c) {
  Architecture a = read_common(c);
  a.max_position_embeddings = c.whole_or("max_position_embeddings", 2048);
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  Stack& s = a.decoder;
  const char* heads_key = c.has("num_attention_heads") ? "num_attention_heads" : "n_head";
  const char* layers_key = c.has("num_hidden_layers") ? "num_hidden_layers" : "n_layer";
  const bool grouped = c.flag_or("new_decoder_architecture", false);
  LayerShape layer;
  layer.heads = read_heads(c, {"hidden_size", heads_key, grouped ? "num_kv_heads" : nullptr});
  if (!grouped && c.flag_or("multi_query", true)) layer.heads.num_key_value_heads = 1;
  layer.intermediate_size = c.whole_or("ffn_hidden_size", 4 * a.hidden_size);
  s.layers.assign(read_num_layers(c, layers_key), layer);
  s.norm = NormKind::Layer;
  s.norm_eps = c.positive_or("layer_norm_epsilon", 1e-5);
  const bool parallel = grouped || c.flag_or("parallel_attn", true);
  const bool two_norms = grouped && c.whole_or("num_ln_in_parallel_attn", 2) == 2;
  s.residual = two_norms ? Residual::ParallelTwoNorms
                         : (parallel ? Residual::ParallelOneNorm : Residual::Sequential);
  s.attention_scale = inverse_root(layer.heads.head_dim);
  const bool bias = c.flag_or("bias", false);
  set_qkv_bias(s, bias);
  s.attention_output_bias = s.mlp_bias = bias;
  s.activation = read_activation(c, "activation", "gelu");
  if (c.flag_or("alibi", false)) {
    s.position = Position::Alibi;
  } else {
    use_rope(s, c, c.positive_or("rope_theta", 10000), layer.heads.head_dim);
  }
  return a;
}

Architecture read_gpt2(const JsonObject& c) {
  Architecture a;
  a.hidden_size = c.whole("n_embd");
  a.vocab_size = c.whole("vocab_size");
  a.max_position_embeddings = c.whole(c.has("n_positions") ? "n_positions" : "n_ctx");
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  Stack& s = a.decoder;
  LayerShape layer;
  layer.heads = read_heads(c, {"n_embd", "n_head", "num_key_value_heads"});
  layer.intermediate_size = c.whole_or("n_inner", 4 * a.hidden_size);
  s.layers.assign(read_num_layers(c, "n_layer"), layer);
  s.norm = NormKind::Layer;
  s.norm_eps = c.positive_or("layer_norm_epsilon", 1e-5);
  s.position = Position::Learned;
  s.position_rows = a.max_position_embeddings;
  s.attention_scale =
      c.flag_or("scale_attn_weights", true) ? inverse_root(layer.heads.head_dim) : 1;
  if (c.flag_or("scale_attn_by_inverse_layer_idx", false)) {
    c.fail("scale_attn_by_inverse_layer_idx", "false: scaling by layer is not modelled");
  }
  set_qkv_bias(s, true);
  s.attention_output_bias = s.mlp_bias = true;
  s.activation = read_activation(c, "activation_function", "gelu_new");
  return a;
}

Architecture read_opt(const JsonObject& c) {
  Architecture a = read_common(c);
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  if (!c.flag_or("do_layer_norm_before", true)) {
    c.fail("do_layer_norm_before", "true: post-norm OPT (350M) is not modelled");
  }
  if (c.whole_or("word_embed_proj_dim", a.hidden_size) != a.hidden_size) {
    c.fail("word_embed_proj_dim", "hidden_size: projected embeddings (OPT-350M) are not modelled");
  }
  Stack& s = a.decoder;
  LayerShape layer;
  layer.heads = read_heads(c);
  layer.intermediate_size = c.whole("ffn_dim");
  s.layers.assign(read_num_layers(c, "num_hidden_layers"), layer);
  s.norm = NormKind::Layer;
  s.norm_eps = 1e-5;  // torch.nn.LayerNorm's default
  s.final_norm = !c.flag_or("_remove_final_layer_norm", false);
  s.position = Position::Learned;
  s.position_rows = c.whole("max_position_embeddings");
  s.position_offset = 2;  // OPTLearnedPositionalEmbedding
  s.attention_scale = inverse_root(layer.heads.head_dim);
  s.score_scale = ScoreScale::OnQuery;
  s.clamps_masked_scores = true;
  const bool bias = c.flag_or("enable_bias", true);
  set_qkv_bias(s, bias);
  s.attention_output_bias = s.mlp_bias = bias;
  s.activation = read_activation(c, "activation_function", "relu");
  return a;
}

}  // namespace kvcast::config
