#include <cmath>
#include <numbers>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/config/config_families.h"

namespace kvcast::config {
namespace {

/// Llama 3.1's `rope_scaling`: long wavelengths are stretched, short ones kept, those between
/// interpolated. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
void scale_llama3(RopeTable& table, const JsonObject& scaling) {
  const double factor = scaling.positive("factor");
  const double low = scaling.positive("low_freq_factor");
  const double high = scaling.positive("high_freq_factor");
  const double original = scaling.positive("original_max_position_embeddings");
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
void scale_longrope(RopeTable& table, const JsonObject& c, const JsonObject& scaling) {
  const double context = c.positive("max_position_embeddings");
  const double original = c.positive("original_max_position_embeddings");
  const double factor = context / original;
  if (factor > 1) table.gain = std::sqrt(1 + std::log(factor) / std::log(original));
  divide_frequencies(table, scaling, "short_factor");
  table.max_positions = static_cast<std::uint64_t>(original);
}

}  // namespace

double inverse_root(std::uint64_t head_dim) { return 1 / std::sqrt(static_cast<double>(head_dim)); }

std::uint64_t read_num_layers(const JsonObject& c, const char* key) {
  const std::uint64_t layers = c.whole(key);
  if (layers > 10000) c.fail(key, "at most 10000 layers");
  return layers;
}

Heads read_heads(const JsonObject& c, const HeadKeys& keys) {
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
  if (c.flag_or("use_key_value_mlp", false)) {
    c.fail("use_key_value_mlp", "false: key-value projections of two layers are not modelled");
  }
  const std::string semantics = c.text_or("mlkv_semantics", "paper");
  if (semantics != "paper" && semantics != "released") {
    c.fail("mlkv_semantics", "paper or released");
  }
  s.shared_keys = semantics == "paper" ? SharedKeys::Rotated : SharedKeys::Released;
  share_key_values(s, owners);
}

Function read_activation(const JsonObject& c, const char* key, const char* fallback) {
  const std::string text = c.text_or(key, fallback);
  if (text == "silu" || text == "swish") return Function::Silu;
  if (text == "gelu") return Function::Gelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh" || text == "gelu_fast") {
    return Function::GeluTanh;
  }
  if (text == "relu") return Function::Relu;
  c.fail(key, "silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast or relu");
}

std::shared_ptr<const RopeTable> read_rope(const JsonObject& c, double theta,
                                           std::uint64_t rotary_dims) {
  if (rotary_dims < 2 || rotary_dims % 2 != 0 || rotary_dims > 65536) {
    throw Error(c.place(), "rotary embeddings over " + std::to_string(rotary_dims) + " dims",
                "an even number of dims up to 65536");
  }
  // transformers 5 writes rope_parameters in place of rope_theta and rope_scaling.
  const char* key = c.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (c.has("rope_parameters")) theta = c.object(key).positive_or("rope_theta", theta);
  auto table = std::make_shared<RopeTable>();
  for (std::uint64_t j = 0; j < rotary_dims / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(rotary_dims);
    table->inverse_frequencies.push_back(std::pow(theta, exponent));
  }
  if (!c.has(key)) return table;
  const JsonObject scaling = c.object(key);
  const std::string type =
      scaling.has("rope_type") ? scaling.text("rope_type") : scaling.text("type");
  if (type == "llama3") {
    scale_llama3(*table, scaling);
  } else if (type == "linear") {
    table->position_scale = scaling.positive("factor");
  } else if (type == "longrope" || type == "su") {
    scale_longrope(*table, c, scaling);
  } else if (type == "frequency_factors") {
    // No config.json says this: GGUF files hold Llama 3.1's scaling as the divisors it comes to.
    divide_frequencies(*table, scaling, "factors");
  } else if (type != "default") {
    scaling.fail(scaling.has("rope_type") ? "rope_type" : "type",
                 "default, linear, llama3 or longrope");
  }
  return table;
}

}  // namespace kvcast::config
