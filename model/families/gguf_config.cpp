#include "model/families/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/families/family.h"
#include "model/io/tensors/mapped_file.h"

namespace kvcast {
namespace {

using nlohmann::json;

/// A share of the head that the reader of `partial_rotary_factor`, which truncates the product,
/// turns back into `dims`.
double share_of(std::uint64_t dims, std::uint64_t head_dim) {
  const double share = static_cast<double>(dims) / static_cast<double>(head_dim);
  const double product = share * static_cast<double>(head_dim);
  return product < static_cast<double>(dims) ? std::nextafter(share, 2.0) : share;
}

/// What YaRN's form of `rope_scaling` has besides its factor.
void add_yarn(const GgufReader& r, double factor, json& scaling) {
  constexpr std::pair<const char*, const char*> same[] = {
      {"rope.scaling.yarn_beta_fast", "beta_fast"},
      {"rope.scaling.yarn_beta_slow", "beta_slow"},
      {"rope.scaling.yarn_attn_factor", "attention_factor"}};
  for (const auto& [stored, key] : same) {
    if (r.has(stored)) scaling[key] = r.number(stored);
  }
  if (r.has("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = r.whole("rope.scaling.original_context_length");
  }
  // llama.cpp multiplies the usual gain by it.
  const double more = r.number_or("rope.scaling.attn_factor", 1);
  if (more != 1) scaling["attention_factor"] = more * (1 + 0.1 * std::log(std::max(factor, 1.0)));
}

/// Hugging Face's `rope_scaling`, or null.
json rope_scaling(const GgufReader& r) {
  std::string type(r.metadata().text_or(r.key("rope.scaling.type"), "linear"));
  double factor = r.number_or("rope.scaling.factor", 1);
  if (r.has("rope.scale_linear")) {  // as files spelled it before there were other types
    type = "linear";
    factor = r.number("rope.scale_linear");
  }
  // llama.cpp multiplies sines and cosines by it whatever the type.
  const bool is_long = r.has_tensor("rope_factors_short.weight");
  if (type != "yarn" && !is_long && r.number_or("rope.scaling.attn_factor", 1) != 1) {
    r.metadata().fail(r.key("rope.scaling.attn_factor"),
                      fmt::format("{:g}", r.number_or("rope.scaling.attn_factor", 1)),
                      "1, or the type yarn or factors");
  }
  const bool is_linear = type == "linear" && factor != 1;
  const std::string_view factors = "rope_freqs.weight";
  if (r.has_tensor(factors)) {
    if (is_linear)
      r.metadata().fail(r.key("rope.scaling.type"), type, "none together with rope_freqs");
    return {{"rope_type", "frequency_factors"}, {"factors", r.values(factors)}};
  }
  if (r.has_tensor("rope_factors_short.weight")) {
    json scaling{{"rope_type", "longrope"},
                 {"short_factor", r.values("rope_factors_short.weight")}};
    const char* const gain = "rope.scaling.attn_factor";
    if (r.has(gain)) scaling["attention_factor"] = r.number(gain);
    if (r.has_tensor("rope_factors_long.weight")) {
      scaling["long_factor"] = r.values("rope_factors_long.weight");
    }
    return scaling;
  }
  if (is_linear) return {{"rope_type", "linear"}, {"factor", factor}};
  // "none" and a factor of 1 scale nothing.
  if (type == "none" || type == "linear") return nullptr;
  json scaling{{"rope_type", type}, {"factor", factor}};
  if (type == "yarn") add_yarn(r, factor, scaling);
  return scaling;
}

void add_rope(const GgufReader& r, const ConfigKeys& k, std::uint64_t head_dim, json& c) {
  c[k.rope_theta != nullptr ? k.rope_theta : "rope_theta"] = r.number_or("rope.freq_base", 10000);
  if (const json scaling = rope_scaling(r); !scaling.is_null()) {
    c["rope_scaling"] = scaling;
  } else if (k.default_rope != nullptr) {
    c["rope_scaling"] = {{"rope_type", "default"}};
  }
  const char* const dims = "rope.dimension_count";
  if (k.rope_dims != nullptr) {
    c[k.rope_dims] = r.whole(dims);
    return;
  }
  if (k.rotary_share == nullptr) {
    const std::uint64_t rotated = r.whole_or(dims, head_dim);
    if (rotated == head_dim) return;
    r.metadata().fail(r.key(dims), std::to_string(rotated),
                      std::to_string(head_dim) + ": this family rotates whole heads");
  }
  const bool usually_all = k.default_rotary_share == 1;
  c[k.rotary_share] = share_of(usually_all ? r.whole_or(dims, head_dim) : r.whole(dims), head_dim);
}

/// Of the MLPs, one number or one a layer; without any that of the experts.
json mlp_width(const GgufReader& r, const Family& family) {
  const char* const key = "feed_forward_length";
  if (family.gguf.uneven_layers) return r.whole_or_none(key);
  if (family.keys.listed_mlp_widths) return r.by_layer(key);
  return r.whole(r.has(key) || !r.has("expert_feed_forward_length") ? key
                                                                    : "expert_feed_forward_length");
}

/// What the family's keys say, from the metadata that all decoders have.
json decoder_config(const GgufReader& r, const Family& family) {
  const ConfigKeys& k = family.keys;
  const std::uint64_t heads = r.whole("attention.head_count");
  const std::uint64_t hidden = r.whole("embedding_length");
  const bool has_latents = k.rope_dims != nullptr;  // whose heads have several sizes
  const std::uint64_t head_dim = has_latents ? 0 : r.head_dim();
  const bool uneven = family.gguf.uneven_layers;
  json c{{k.hidden_size, hidden},
         {k.intermediate_size, mlp_width(r, family)},
         {k.num_hidden_layers, r.num_hidden_layers()},
         {k.num_attention_heads, heads},
         {k.max_position_embeddings, r.whole("context_length")}};
  if (k.head_dim != nullptr) c[k.head_dim] = head_dim;
  if (k.num_key_value_heads != nullptr) {
    const char* const key = "attention.head_count_kv";
    c[k.num_key_value_heads] = uneven ? r.whole_or_none(key) : r.whole_or(key, heads);
  }
  if (k.norm_eps != nullptr) {
    const NormKind norm = family.stack.norm;
    const bool layer_norm = norm == NormKind::Layer || norm == NormKind::LayerScale;
    const char* key = "attention.layer_norm_rms_epsilon";
    const char* other = "attention.layer_norm_epsilon";
    if (layer_norm) std::swap(key, other);
    // Nemotron-H's files of either age have one of them, Phi-3.5-MoE's that of the other norm.
    c[k.norm_eps] = r.number(r.has(key) || !r.has(other) ? key : other);
  }
  if (k.mlp_bias != nullptr) {
    c[k.mlp_bias] = r.has_in_layers("ffn_up.bias") || r.has_in_layers("ffn_up_shexp.bias");
  }
  if (k.attention_bias != nullptr) c[k.attention_bias] = r.has_projection_bias();
  if (!family.gguf.rotates) {
    for (const char* key : {"rope.dimension_count", "rope.freq_base"}) r.pass_over(key);
  } else if (family.stack.position == Position::Rope) {
    add_rope(r, k, head_dim, c);
  }
  if (r.whole_or("expert_count", 0) > 0) {
    c["num_local_experts"] = r.whole("expert_count");
    c["num_experts_per_tok"] = r.whole_or("expert_used_count", 0);
  }
  return c;
}

/// Keys that files hold beside those that say the same, or that llama.cpp reads for nothing.
bool is_inert(std::string_view key) {
  constexpr std::string_view endings[] = {
      ".attention.layer_norm_epsilon",  // of the other kind of norm
      ".attention.layer_norm_rms_epsilon",
      ".expert_used_count",        // of a model without experts
      ".n_deepstack_layers",       // of images
      ".rope.dimension_sections",  // of images; text has one position a token
      ".rope.scaling.factor",      // of rotations that the tensor of factors scales
      ".rope.scaling.finetuned",
      ".rope.scaling.original_context_length",  // of other scalings than YaRN
      ".tensor_data_layout",
      ".vocab_size",  // the table of embeddings says it
  };
  return std::any_of(std::begin(endings), std::end(endings),
                     [key](std::string_view ending) { return key.ends_with(ending); });
}

bool is_printable_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

json gguf_config(const GgufFile& file) {
  const GgufReader reader(file);
  const GgufMetadata& metadata = file.metadata;
  const std::string_view architecture = metadata.text("general.architecture");
  std::vector<std::string> known;
  const Family* family = nullptr;
  for (const Family& f : all_families()) {
    if (f.gguf.architecture == nullptr) continue;
    known.emplace_back(f.gguf.architecture);
    const char* const other = f.gguf.other_architecture;
    if (other != nullptr) known.emplace_back(other);
    if (architecture != f.gguf.architecture && (other == nullptr || architecture != other))
      continue;
    const bool asks = f.gguf.is_of != nullptr;
    if (asks ? f.gguf.is_of(reader) : family == nullptr) family = &f;
  }
  if (family == nullptr) {
    throw Error(file.file->path() + ": metadata general.architecture",
                unknown_name("architecture", shortened(architecture), known));
  }
  if (!metadata.flag_or(reader.key("attention.causal"), true)) {
    metadata.fail(reader.key("attention.causal"), "false",
                  "true: each token reads those before it alone");
  }
  if (metadata.whole_or("split.count", 1) > 1) {
    metadata.fail("split.count", std::to_string(metadata.whole("split.count")),
                  "1: join the parts of a split model with llama-gguf-split --merge");
  }
  json config = family->read == nullptr ? decoder_config(reader, *family) : json::object();
  if (family->gguf.complete != nullptr) family->gguf.complete(reader, config);
  config["model_type"] = family->model_types.front();
  config["vocab_size"] = reader.vocab_size();
  config[family->keys.tied_embeddings] = !file.has("output.weight");
  // read_config() names keys that it does not know.
  for (const std::string& key : reader.unread_keys()) {
    if (!is_inert(key)) config[shortened(key)] = nullptr;
  }
  const std::string_view name = metadata.text_or("general.name", "");
  // Other bytes may not be valid JSON.
  if (!name.empty() && is_printable_ascii(name)) config["_name_or_path"] = name;
  return config;
}

}  // namespace kvcast
