#include "model/families/config_parts.h"

#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Llama 3.1's `rope_scaling`: long wavelengths are stretched, short ones kept, those between
/// interpolated. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
void scale_llama3(RopeTable& table, const JsonObject& scaling, double original) {
  const double factor = scaling.positive("factor");
  const double low = scaling.positive("low_freq_factor");
  const double high = scaling.positive("high_freq_factor");
  if (high <= low) scaling.fail("high_freq_factor", "a number above low_freq_factor");
  for (double& frequency : table.inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength > original / low) {
      frequency /= factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

/// A divisor for each frequency, under `key`.
void divide_frequencies(RopeTable& table, const JsonObject& scaling, const char* key) {
  const std::vector<double> divisors = scaling.positives(key);
  if (divisors.size() != table.inverse_frequencies.size()) {
    scaling.fail(key, std::to_string(table.inverse_frequencies.size()) + " numbers");
  }
  for (std::size_t i = 0; i < divisors.size(); ++i) table.inverse_frequencies[i] /= divisors[i];
}

/// Phi-3's `longrope`: a divisor for each frequency and a gain on cos and sin. The short factors
/// serve sequences up to the original context; kvcast records with them.
/// Source: transformers, modeling_rope_utils.py, _compute_longrope_parameters.
void scale_longrope(RopeTable& table, const JsonObject& c, const JsonObject& scaling,
                    double original) {
  const double factor = scaling.has("factor") ? scaling.positive("factor")
                                              : c.positive("max_position_embeddings") / original;
  const double gain = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
  table.gain = scaling.positive_or("attention_factor", gain);
  divide_frequencies(table, scaling, "short_factor");
  table.max_positions = static_cast<std::uint64_t>(original);
}

/// What a config says of its rotations besides the family's keys. As in transformers, rope_scaling
/// replaces all of rope_parameters, and an empty object counts as absent.
std::optional<JsonObject> rope_parameters(const JsonObject& c) {
  std::optional<JsonObject> found;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (c.has(key) && !c.object(key).keys().empty()) found = c.object(key);
  }
  if (!found) return found;
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (found->has(layer_type)) {
      found->fail(layer_type, "one rope_type for all layers: others are not modelled");
    }
  }
  return found;
}

/// The context of the model before its rotations were stretched. A key of the config takes
/// precedence over the one in rope_parameters.
/// Source: transformers, modeling_rope_utils.py, standardize_rope_params.
double original_context(const JsonObject& c, const JsonObject& scaling, const ConfigKeys& keys) {
  constexpr const char* key = "original_max_position_embeddings";
  if (c.has(key) || keys.default_original_context > 0) {
    return c.positive_or(key, static_cast<double>(keys.default_original_context));
  }
  return scaling.has(key) ? scaling.positive(key) : c.positive("max_position_embeddings");
}

/// Dims of a head that are rotated.
std::uint64_t rotary_dims(const JsonObject& c, const std::optional<JsonObject>& parameters,
                          const ConfigKeys& keys, std::uint64_t head_dim) {
  if (keys.rotary_share == nullptr) return head_dim;
  constexpr const char* key = "partial_rotary_factor";
  const bool inside = parameters && parameters->has(key);
  const double share = inside ? parameters->positive(key)
                              : c.positive_or(keys.rotary_share, keys.default_rotary_share);
  if (share > 1) {
    (inside ? *parameters : c)
        .fail(inside ? key : keys.rotary_share, "a share of the head from 0 to 1");
  }
  return static_cast<std::uint64_t>(static_cast<double>(head_dim) * share);
}

}  // namespace

double inverse_root(std::uint64_t head_dim) { return 1 / std::sqrt(static_cast<double>(head_dim)); }

std::uint64_t read_num_layers(const JsonObject& c, std::string_view key) {
  const std::uint64_t layers = c.whole(key);
  if (layers > 10000) c.fail(key, "at most 10000 layers");
  return layers;
}

Heads read_heads(const JsonObject& c, const ConfigKeys& keys) {
  const std::uint64_t hidden = c.whole(keys.hidden_size);
  Heads heads;
  heads.num_attention_heads = c.whole(keys.num_attention_heads);
  const std::uint64_t fallback =
      keys.default_key_value_heads > 0 ? keys.default_key_value_heads : heads.num_attention_heads;
  heads.num_key_value_heads = keys.num_key_value_heads == nullptr
                                  ? heads.num_attention_heads
                                  : c.whole_or(keys.num_key_value_heads, fallback);
  if (heads.num_attention_heads % heads.num_key_value_heads != 0) {
    c.fail(keys.num_key_value_heads,
           "a divisor of the " + std::to_string(heads.num_attention_heads) + " attention heads");
  }
  if (c.has("head_dim")) {
    heads.head_dim = c.whole("head_dim");
  } else if (keys.default_head_dim > 0) {
    heads.head_dim = keys.default_head_dim;
  } else {
    if (hidden % heads.num_attention_heads != 0) {
      c.fail(keys.hidden_size, "a multiple of the " + std::to_string(heads.num_attention_heads) +
                                   " attention heads, or a head_dim");
    }
    heads.head_dim = hidden / heads.num_attention_heads;
  }
  return heads;
}

void read_shared_key_values(Stack& s, const JsonObject& c) {
  if (!c.has("num_key_value_layers")) return;
  const std::uint64_t owners = c.whole("num_key_value_layers");
  if (s.layers.size() % owners != 0) {
    c.fail("num_key_value_layers",
           "a divisor of the " + std::to_string(s.layers.size()) + " layers");
  }
  require_flag(c, "use_key_value_mlp", false, "key-value projections of two layers");
  const std::string semantics = c.text_or("mlkv_semantics", "paper");
  if (semantics != "paper" && semantics != "released") {
    c.fail("mlkv_semantics", "paper or released");
  }
  s.shared_keys = semantics == "paper" ? SharedKeys::Rotated : SharedKeys::Released;
  share_key_values(s, owners);
}

Function read_activation(const JsonObject& c, std::string_view key, Function fallback) {
  if (!c.has(key)) return fallback;
  const std::string text = c.text(key);
  if (text == "silu" || text == "swish") return Function::Silu;
  if (text == "gelu") return Function::Gelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh" || text == "gelu_fast") {
    return Function::GeluTanh;
  }
  if (text == "relu") return Function::Relu;
  c.fail(key, "silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast or relu");
}

std::shared_ptr<const RopeTable> read_rope(const JsonObject& c, const ConfigKeys& keys,
                                           std::uint64_t head_dim) {
  const std::optional<JsonObject> parameters = rope_parameters(c);
  const std::uint64_t dims = rotary_dims(c, parameters, keys, head_dim);
  if (dims < 2 || dims % 2 != 0 || dims > 65536) {
    throw Error(c.place(), "rotary embeddings over " + std::to_string(dims) + " dims",
                "an even number of dims up to 65536");
  }
  double theta = c.positive_or(keys.rope_theta, 10000);
  if (parameters) theta = parameters->positive_or("rope_theta", theta);
  auto table = std::make_shared<RopeTable>();
  for (std::uint64_t j = 0; j < dims / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(dims);
    table->inverse_frequencies.push_back(std::pow(theta, exponent));
  }
  if (!parameters) return table;
  const JsonObject& scaling = *parameters;
  // A factor asks for a type; what only sets the base is the default's.
  const bool names_type = scaling.has("type") || scaling.has("factor");
  const std::string type = scaling.has("rope_type")
                               ? scaling.text("rope_type")
                               : (names_type ? scaling.text("type") : "default");
  if (type == "llama3") {
    scale_llama3(*table, scaling, original_context(c, scaling, keys));
  } else if (type == "linear") {
    table->position_scale = scaling.positive("factor");
  } else if (type == "longrope" || type == "su") {
    scale_longrope(*table, c, scaling, original_context(c, scaling, keys));
  } else if (type == "frequency_factors") {
    // No config.json says this: GGUF files hold Llama 3.1's scaling as the divisors it comes to.
    divide_frequencies(*table, scaling, "factors");
  } else if (type != "default") {
    scaling.fail(scaling.has("rope_type") ? "rope_type" : "type",
                 "default, linear, llama3 or longrope");
  }
  return table;
}

TensorNames bart_layer() {
  return {{"query", "self_attn.q_proj"},
          {"key", "self_attn.k_proj"},
          {"value", "self_attn.v_proj"},
          {"attention_output", "self_attn.out_proj"},
          {"attention_norm", "self_attn_layer_norm"},
          {"cross_query", "encoder_attn.q_proj"},
          {"cross_key", "encoder_attn.k_proj"},
          {"cross_value", "encoder_attn.v_proj"},
          {"cross_output", "encoder_attn.out_proj"},
          {"cross_norm", "encoder_attn_layer_norm"},
          {"mlp_norm", "final_layer_norm"},
          {"up", "fc1"},
          {"down", "fc2"}};
}

void require_flag(const JsonObject& c, std::string_view key, bool value, std::string_view what) {
  if (c.flag_or(key, value) == value) return;
  c.fail(key, fmt::format("{}: {} are not modelled", value, what));
}

void refuse_experts(const JsonObject& c) {
  if (c.whole_or("num_local_experts", 1) > 1) {
    c.fail("num_local_experts", "1: mixtures of experts are not modelled");
  }
}

std::uint64_t sliding_window(const JsonObject& c, std::uint64_t fallback) {
  return c.is_null("sliding_window") ? 0 : c.whole_or("sliding_window", fallback);
}

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

Architecture read_decoder(const JsonObject& c, const Family& family) {
  const ConfigKeys& k = family.keys;
  Architecture a;
  a.hidden_size = c.whole(k.hidden_size);
  a.vocab_size = c.whole("vocab_size");
  a.tied_embeddings = c.flag_or(k.tied_embeddings, k.default_tied);
  a.decoder = family.stack;
  Stack& s = a.decoder;
  if (s.position == Position::Learned) {
    a.max_position_embeddings = s.position_rows = c.whole(k.max_position_embeddings);
  } else {
    a.max_position_embeddings = c.whole_or(k.max_position_embeddings, k.default_max_positions);
  }
  LayerShape layer;
  layer.heads = read_heads(c, k);
  layer.intermediate_size =
      k.default_mlp_ratio > 0 ? c.whole_or(k.intermediate_size, k.default_mlp_ratio * a.hidden_size)
                              : c.whole(k.intermediate_size);
  s.layers.assign(read_num_layers(c, k.num_hidden_layers), layer);
  if (k.norm_eps != nullptr) s.norm_eps = c.positive_or(k.norm_eps, s.norm_eps);
  s.attention_scale = inverse_root(layer.heads.head_dim);
  s.activation = read_activation(c, k.activation, s.activation);
  if (k.attention_bias != nullptr) {
    const bool bias = c.flag_or(k.attention_bias, s.query_bias);
    s.query_bias = s.key_bias = s.value_bias = s.attention_output_bias = bias;
  }
  if (k.mlp_bias != nullptr) s.mlp_bias = c.flag_or(k.mlp_bias, s.mlp_bias);
  if (k.alibi != nullptr && c.flag_or(k.alibi, false)) s.position = Position::Alibi;
  if (s.position == Position::Rope) s.rope = read_rope(c, k, layer.heads.head_dim);
  if (family.refine != nullptr) family.refine(c, a);
  return a;
}

}  // namespace kvcast
