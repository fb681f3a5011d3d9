#include "model/families/config_parts.h"

#include <algorithm>
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
  if (high < low) scaling.fail("high_freq_factor", "a number not below low_freq_factor");
  for (double& frequency : table.inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength > original / low) {
      frequency /= factor;
    } else if (wavelength >= original / high && low < high) {
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
/// serve passes that end within the original context, the long ones all others: keys that are
/// cached keep the rotation of their own pass.
/// Source: transformers, modeling_rope_utils.py, _compute_longrope_parameters.
void scale_longrope(RopeTable& table, const JsonObject& c, const JsonObject& scaling,
                    double original) {
  const double factor = scaling.has("factor") ? scaling.positive("factor")
                                              : c.positive("max_position_embeddings") / original;
  const double gain = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
  table.gain = scaling.positive_or("attention_factor", gain);
  if (scaling.has("long_factor")) {
    RopeTable longer = table;
    divide_frequencies(longer, scaling, "long_factor");
    table.long_frequencies = std::move(longer.inverse_frequencies);
  }
  divide_frequencies(table, scaling, "short_factor");
  table.max_positions = static_cast<std::uint64_t>(original);
}

/// YaRN: wavelengths that the original context holds often are kept, long ones stretched.
/// Source: transformers, modeling_rope_utils.py, _compute_yarn_parameters; Peng et al. 2023
/// (arXiv:2309.00071).
void scale_yarn(RopeTable& table, const JsonObject& c, const JsonObject& scaling, double theta,
                double original, bool by_layer_type) {
  const double factor = scaling.has("factor") ? scaling.positive("factor")
                                              : c.positive("max_position_embeddings") / original;
  const auto gain = [&](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1;
  };
  const double mscale = scaling.number_or("mscale", 0);
  const double mscale_all_dim = scaling.number_or("mscale_all_dim", 0);
  const bool ratio = mscale != 0 && mscale_all_dim != 0;
  table.gain = scaling.positive_or("attention_factor",
                                   ratio ? gain(mscale) / gain(mscale_all_dim) : gain(1));
  const auto pairs = static_cast<double>(table.inverse_frequencies.size());
  const auto pair_of = [&](double rotations) {
    return pairs * std::log(original / (rotations * 2 * std::numbers::pi)) / std::log(theta);
  };
  double low = pair_of(scaling.positive_or("beta_fast", 32));
  double high = pair_of(scaling.positive_or("beta_slow", 1));
  // transformers 5.23 does not find the key in the entry of a layer type.
  if (scaling.flag_or("truncate", true) || by_layer_type) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, 2 * pairs - 1);
  if (low == high) high += 0.001;
  for (std::size_t j = 0; j < table.inverse_frequencies.size(); ++j) {
    const double stretched = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    table.inverse_frequencies[j] *= 1 - stretched + stretched / factor;
  }
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
  const double usual = c.is_null(keys.rotary_share) ? 1 : keys.default_rotary_share;
  const double share = inside ? parameters->positive(key) : c.positive_or(keys.rotary_share, usual);
  if (share > 1) {
    (inside ? *parameters : c)
        .fail(inside ? key : keys.rotary_share, "a share of the head from 0 to 1");
  }
  return static_cast<std::uint64_t>(static_cast<double>(head_dim) * share);
}

}  // namespace

std::optional<JsonObject> rope_parameters(const JsonObject& c, const char* layer_type) {
  std::optional<JsonObject> found;
  if (c.has("rope_parameters") && !c.object("rope_parameters").keys().empty()) {
    found = c.object("rope_parameters");
  }
  const bool scales = c.has("rope_scaling") && !c.object("rope_scaling").keys().empty();
  if (layer_type == nullptr) {
    if (scales) found = c.object("rope_scaling");
    if (!found) return found;
    for (const char* type : {"full_attention", "sliding_attention"}) {
      if (found->has(type)) {
        found->fail(type, "one rope_type for all layers: others are not modelled");
      }
    }
    return found;
  }
  // The older layout stretches full attention only.
  const bool full = std::string_view(layer_type) == "full_attention";
  if (found) {
    if (scales) c.fail("rope_scaling", "null beside rope_parameters with entries for layer types");
    for (const std::string& key : found->keys()) {
      if (key == "full_attention" || key == "sliding_attention") continue;
      found->fail(key, "an entry for each layer type, full_attention and sliding_attention");
    }
    found = found->has(layer_type) ? std::optional(found->object(layer_type)) : std::nullopt;
  }
  return full && scales ? c.object("rope_scaling") : found;
}

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
  // As in transformers, null is none of the default: as many as query heads.
  const bool as_queries =
      keys.num_key_value_heads == nullptr || c.is_null(keys.num_key_value_heads);
  heads.num_key_value_heads =
      as_queries ? heads.num_attention_heads : c.whole_or(keys.num_key_value_heads, fallback);
  if (heads.num_attention_heads % heads.num_key_value_heads != 0) {
    c.fail(keys.num_key_value_heads,
           "a divisor of the " + std::to_string(heads.num_attention_heads) + " attention heads");
  }
  if (keys.head_dim != nullptr && c.has(keys.head_dim)) {
    heads.head_dim = c.whole(keys.head_dim);
  } else if (keys.default_head_dim > 0 && !(keys.head_dim != nullptr && c.is_null(keys.head_dim))) {
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
  for (LayerShape& layer : s.layers) {
    layer.heads.num_key_value_heads =
        c.whole_or("num_key_value_heads", layer.heads.num_key_value_heads);
    if (layer.heads.num_attention_heads % layer.heads.num_key_value_heads != 0) {
      c.fail("num_key_value_heads",
             fmt::format("a divisor of the {} attention heads", layer.heads.num_attention_heads));
    }
  }
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
  if (text == "quick_gelu") return Function::QuickGelu;
  if (text == "relu2") return Function::SquaredRelu;
  // Its parameters are weights that other families' layers have not.
  if (text == "xielu" && fallback == Function::Xielu) return fallback;
  c.fail(key,
         "silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, relu or relu2");
}

std::shared_ptr<const RopeTable> read_rope(const JsonObject& c, const ConfigKeys& keys,
                                           std::uint64_t head_dim) {
  const std::optional<JsonObject> parameters = rope_parameters(c, keys.rope_layer_type);
  const std::uint64_t dims = rotary_dims(c, parameters, keys, head_dim);
  // Of an odd number transformers takes the frequencies, and turns one dim more.
  const std::uint64_t pairs = (dims + 1) / 2;
  if (dims < 2 || 2 * pairs > head_dim || dims > 65536) {
    throw Error(c.place(), "rotary embeddings over " + std::to_string(dims) + " dims",
                "an even number of dims up to 65536, or an odd one below the head's size");
  }
  double theta = c.positive_or(keys.rope_theta, keys.default_rope_theta);
  if (parameters) theta = parameters->positive_or("rope_theta", theta);
  auto table = std::make_shared<RopeTable>();
  table->interleaved = keys.interleaved_rope;
  for (std::uint64_t j = 0; j < pairs; ++j) {
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
  if (dims % 2 != 0 && (type.ends_with("yarn") || type == "dynamic")) {
    scaling.fail(scaling.has("rope_type") ? "rope_type" : "type",
                 "another type for rotations over an odd number of dims");
  }
  if (type == "llama3") {
    scale_llama3(*table, scaling, original_context(c, scaling, keys));
  } else if (type == "linear") {
    table->position_scale = scaling.positive("factor");
  } else if (type == "longrope" || type == "su") {
    scale_longrope(*table, c, scaling, original_context(c, scaling, keys));
  } else if (type == "yarn" || type == "deepseek_yarn") {  // Sarvam's files
    scale_yarn(*table, c, scaling, theta, original_context(c, scaling, keys),
               keys.rope_layer_type != nullptr);
  } else if (type == "dynamic") {
    // Beyond the context the base grows with the length. Source: transformers,
    // modeling_rope_utils.py, _compute_dynamic_ntk_parameters.
    table->length_factor = scaling.positive("factor");
    table->base = theta;
    table->max_positions = c.whole("max_position_embeddings");
    if (dims <= 2) table->length_factor = 0;  // the base would be raised to dims / (dims - 2)
  } else if (type == "frequency_factors") {
    // No config.json says this: GGUF files hold Llama 3.1's scaling as the divisors it comes to.
    divide_frequencies(*table, scaling, "factors");
  } else if (type != "default") {
    scaling.fail(scaling.has("rope_type") ? "rope_type" : "type",
                 "default, linear, llama3, longrope, yarn or dynamic");
  }
  return table;
}

void refine_granite(const JsonObject& c, Architecture& a) {
  a.embedding_scale = c.positive_or("embedding_multiplier", 1);
  a.logit_scale = 1 / c.positive_or("logits_scaling", 1);
  a.decoder.branch_scale = c.positive_or("residual_multiplier", 1);
  a.decoder.attention_scale = c.positive_or("attention_multiplier", 1);
}

Family llama_like(std::string_view model_type) {
  Family f{.model_types = {model_type}};
  f.stack.norm_eps = 1e-6;
  f.stack.gated_mlp = true;
  f.keys.norm_eps = "rms_norm_eps";
  f.refine = [](const JsonObject& c, Architecture&) { refuse_experts(c); };
  f.names.in_layer = {{"query", "self_attn.q_proj"},
                      {"key", "self_attn.k_proj"},
                      {"value", "self_attn.v_proj"},
                      {"attention_output", "self_attn.o_proj"},
                      {"attention_norm", "input_layernorm"},
                      {"mlp_norm", "post_attention_layernorm"},
                      {"gate", "mlp.gate_proj"},
                      {"up", "mlp.up_proj"},
                      {"down", "mlp.down_proj"}};
  f.names.outside = {{"embedding", "embed_tokens"}, {"final_norm", "norm"}};
  f.gguf = {.architecture = "llama", .interleaved_heads = true};
  return f;
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

std::uint64_t used_sliding_window(const JsonObject& c, std::uint64_t fallback) {
  const std::uint64_t window = sliding_window(c, fallback);
  return c.flag_or("use_sliding_window", false) ? window : 0;
}

std::vector<bool> layers_of_type(const JsonObject& c, std::size_t layers, const char* type,
                                 const std::function<bool(std::size_t)>& usual, const char* key,
                                 const char* other) {
  std::vector<bool> found(layers);
  if (!c.has(key)) {
    for (std::size_t i = 0; i < layers; ++i) found[i] = usual(i);
    return found;
  }
  const nlohmann::json& types = c.at(key);
  const std::string expected =
      fmt::format("{} entries \"{}\" or \"{}\", one a layer", layers, other, type);
  if (!types.is_array() || types.size() != layers) c.fail(key, expected);
  // Files from before transformers 5 have other names for two.
  const auto is = [](const nlohmann::json& entry, std::string_view name) {
    return entry == name || (name == "linear_attention" && entry == "mamba") ||
           (name == "full_attention" && entry == "attention");
  };
  for (std::size_t i = 0; i < layers; ++i) {
    found[i] = is(types[i], type);
    if (!found[i] && !is(types[i], other)) c.fail(key, expected);
  }
  return found;
}

std::vector<bool> layer_flags(const JsonObject& c, std::string_view key, std::size_t layers,
                              const std::function<bool(std::size_t)>& usual) {
  std::vector<bool> found(layers);
  if (!c.has(key)) {
    for (std::size_t i = 0; i < layers; ++i) found[i] = usual(i);
    return found;
  }
  const nlohmann::json& flags = c.at(key);
  const std::string expected = fmt::format("{} entries 0 or 1, one a layer", layers);
  if (!flags.is_array() || flags.size() != layers) c.fail(key, expected);
  for (std::size_t i = 0; i < layers; ++i) {
    found[i] = flags[i] == true || flags[i] == 1;
    if (!found[i] && flags[i] != false && flags[i] != 0) c.fail(key, expected);
  }
  return found;
}

std::vector<bool> listed_layers(const JsonObject& c, std::string_view key, std::size_t layers,
                                const std::function<bool(std::size_t)>& usual) {
  std::vector<bool> found(layers);
  if (!c.has(key)) {
    for (std::size_t i = 0; i < layers; ++i) found[i] = usual(i);
    return found;
  }
  const nlohmann::json& list = c.at(key);
  const std::string expected = fmt::format("a list of layers below {}", layers);
  if (!list.is_array()) c.fail(key, expected);
  for (const nlohmann::json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= layers) c.fail(key, expected);
    found[layer.get<std::size_t>()] = true;
  }
  return found;
}

std::vector<bool> read_windows(Stack& s, const JsonObject& c, std::uint64_t window,
                               const std::function<bool(std::size_t)>& usual) {
  if (usual == nullptr && !c.has("layer_types")) return {};
  std::vector<bool> sliding = layers_of_type(c, s.layers.size(), "sliding_attention", usual);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].sliding_window = sliding[i] ? window : 0;
  }
  return sliding;
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
  std::vector<std::uint64_t> widths;
  if (k.listed_mlp_widths && c.has(k.intermediate_size) && c.at(k.intermediate_size).is_array()) {
    widths = c.wholes(k.intermediate_size);
  } else if (k.default_mlp_ratio > 0) {
    layer.intermediate_size = c.whole_or(k.intermediate_size, k.default_mlp_ratio * a.hidden_size);
  } else {
    layer.intermediate_size = c.whole(k.intermediate_size);
  }
  const std::uint64_t layers =
      k.count_layers != nullptr ? k.count_layers(c) : read_num_layers(c, k.num_hidden_layers);
  s.layers.assign(layers, layer);
  if (!widths.empty() && widths.size() != s.layers.size()) {
    c.fail(k.intermediate_size, fmt::format("{} widths, one a layer", s.layers.size()));
  }
  for (std::size_t i = 0; i < widths.size(); ++i) s.layers[i].intermediate_size = widths[i];
  if (k.norm_eps != nullptr) s.norm_eps = c.positive_or(k.norm_eps, s.norm_eps);
  s.attention_scale = inverse_root(layer.heads.head_dim);
  s.activation = read_activation(c, k.activation, s.activation);
  if (k.attention_bias != nullptr) {
    const bool bias = c.flag_or(k.attention_bias, s.query_bias);
    s.query_bias = s.key_bias = s.value_bias = s.attention_output_bias = bias;
  }
  if (k.mlp_bias != nullptr) s.mlp_bias = c.flag_or(k.mlp_bias, s.mlp_bias);
  if (k.alibi != nullptr && c.flag_or(k.alibi, false)) s.position = Position::Alibi;
  if (s.position == Position::Rope && k.rope_theta != nullptr) {
    const std::uint64_t dims = k.rope_dims == nullptr
                                   ? layer.heads.head_dim
                                   : c.whole_or(k.rope_dims, k.default_rope_dims);
    const auto rope = read_rope(c, k, dims);
    for (LayerShape& l : s.layers) l.rope = rope;
  }
  if (family.refine != nullptr) family.refine(c, a);
  read_shared_key_values(s, c);
  return a;
}

}  // namespace kvcast
