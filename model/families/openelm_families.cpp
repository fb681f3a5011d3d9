#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"

namespace kvcast::families {
namespace {

constexpr double norm_eps = 1e-6;  // corenet's rms_norm.py

Architecture read(const JsonObject& c) {
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
  if (c.text_or("normalization_layer_name", "rms_norm") != "rms_norm") {
    c.fail("normalization_layer_name", "rms_norm");
  }
  s.norm_eps = norm_eps;
  if (c.flag_or("normalize_qk_projections", true)) s.query_key_norm = QueryKeyNorm::Heads;
  s.attention_scale = inverse_root(head_dim);
  s.gated_mlp = c.flag_or("ffn_with_glu", true);
  s.activation = read_activation(c, "activation_fn_name", Function::Silu);
  const auto rope = read_rope(c, {.rope_theta = "rope_freq_constant"}, head_dim);
  for (LayerShape& layer : s.layers) layer.rope = rope;
  return a;
}

void complete(const GgufReader& r, nlohmann::json& c) {
  const std::uint64_t hidden = r.whole("embedding_length");
  const char* const eps = "attention.layer_norm_rms_epsilon";
  if (r.number_or(eps, norm_eps) != norm_eps) {
    r.metadata().fail(r.key(eps), fmt::format("{:g}", r.number(eps)),
                      fmt::format("{:g}", norm_eps));
  }
  // Apple's config gives multiples of the width and rounds; a divisor of 1 gives the widths back.
  std::vector<double> multipliers;
  for (const std::uint64_t width : r.by_layer("feed_forward_length")) {
    multipliers.push_back(static_cast<double>(width) / static_cast<double>(hidden));
  }
  const std::uint64_t head_dim = r.head_dim();
  const char* const rotated = "rope.dimension_count";
  if (r.whole_or(rotated, head_dim) != head_dim) {
    r.metadata().fail(r.key(rotated), std::to_string(r.whole(rotated)), std::to_string(head_dim));
  }
  c.update({{"model_dim", hidden},
            {"num_transformer_layers", r.num_layers()},
            {"head_dim", head_dim},
            {"num_query_heads", r.by_layer("attention.head_count")},
            {"num_kv_heads", r.by_layer("attention.head_count_kv")},
            {"ffn_multipliers", multipliers},
            {"ffn_dim_divisor", 1},
            {"ffn_with_glu", r.has_tensor("blk.0.ffn_gate.weight")},
            {"normalize_qk_projections", r.has_tensor("blk.0.attn_q_norm.weight")},
            {"rope_freq_constant", r.number_or("rope.freq_base", 10000)},
            {"max_context_length", r.whole("context_length")}});
}

}  // namespace

/// Source: apple/corenet, corenet/modeling/models/language_modeling/general_gpt.py.
Family openelm() {
  Family f{.model_types = {"openelm"}, .read = read};
  f.keys.tied_embeddings = "share_input_output_layers";
  // What num_query_heads and num_kv_heads come from.
  f.keys.unread = {"num_gqa_groups", "qkv_multipliers", "rope_max_length"};
  f.names = {.prefixes = {"transformer.", ""},
             .in_layer = {{"qkv", "attn.qkv_proj"},
                          {"query_norm", "attn.q_norm"},
                          {"key_norm", "attn.k_norm"},
                          {"attention_output", "attn.out_proj"},
                          {"attention_norm", "attn_norm"},
                          {"mlp_norm", "ffn_norm"},
                          {"gate_up", "ffn.proj_1"},
                          {"down", "ffn.proj_2"}},
             .outside = {{"embedding", "token_embeddings"}, {"final_norm", "norm"}}};
  f.gguf = {.architecture = "openelm", .fused_qkv = true, .complete = complete};
  return f;
}

}  // namespace kvcast::families
