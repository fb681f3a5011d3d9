#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/io/weights/gguf_model.h"
#include "model/io/weights/mapped_file.h"

namespace kvcast {
namespace {

using nlohmann::json;

constexpr std::uint64_t max_layers = 10000;  // as in config.json

/// The metadata of one architecture: "llama.block_count" is asked for as "block_count".
class Reader {
 public:
  explicit Reader(const GgufFile& file)
      : file_(file), prefix_(std::string(file.metadata.text("general.architecture")) + ".") {}

  const GgufMetadata& metadata() const { return file_.metadata; }
  std::string key(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view k) const { return metadata().has(key(k)); }
  bool has_tensor(std::string_view name) const { return file_.has(name); }

  /// A number that all layers share, given once or once a layer.
  std::uint64_t whole(std::string_view k) const {
    if (!has(k) || !metadata().is_array(key(k))) return metadata().whole(key(k));
    const std::vector<std::uint64_t> numbers = by_layer(k);
    if (std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) !=
        numbers.end()) {
      metadata().fail(key(k), "numbers that differ between layers", "the same for all");
    }
    return numbers.front();
  }
  std::uint64_t whole_or(std::string_view k, std::uint64_t fallback) const {
    return has(k) ? whole(k) : fallback;
  }

  std::uint64_t num_layers() const {
    const std::uint64_t layers = metadata().whole(key("block_count"));
    if (layers < 1 || layers > max_layers) {
      metadata().fail(key("block_count"), std::to_string(layers), "1 to 10000 layers");
    }
    return layers;
  }

  /// One number a layer; a single number stands for all of them.
  std::vector<std::uint64_t> by_layer(std::string_view k) const {
    const std::uint64_t layers = num_layers();
    if (!metadata().is_array(key(k))) {
      return std::vector<std::uint64_t>(layers, metadata().whole(key(k)));
    }
    if (metadata().length(key(k)) != layers) {
      metadata().fail(key(k), std::to_string(metadata().length(key(k))) + " numbers",
                      std::to_string(layers) + ", one a layer");
    }
    std::vector<std::uint64_t> numbers;
    for (const std::int64_t number : metadata().integers(key(k))) {
      if (number < 1) metadata().fail(key(k), std::to_string(number), "numbers above 0");
      numbers.push_back(static_cast<std::uint64_t>(number));
    }
    return numbers;
  }

  double number(std::string_view k) const { return metadata().number(key(k)); }
  double number_or(std::string_view k, double fallback) const {
    return metadata().number_or(key(k), fallback);
  }

  /// The rows of token_embd.weight: files say the vocabulary's size in various ways or not at all.
  std::uint64_t vocab_size() const {
    const std::vector<std::uint64_t>* shape = shape_of("token_embd.weight");
    if (shape == nullptr || shape->size() != 2) {
      throw Error(file_.file->path() + ": tensor token_embd.weight",
                  shape == nullptr ? "none" : std::to_string(shape->size()) + " dimensions",
                  "a table of the tokens' embeddings");
    }
    return shape->front();
  }

  /// The values of a tensor that belongs to the config.
  std::vector<float> values(std::string_view name) const {
    const StoredTensor* tensor = file_.find(name);
    if (tensor == nullptr || tensor->dtype != DType::FP32) {
      throw Error(file_.file->path() + ": tensor " + std::string(name),
                  tensor == nullptr ? "none of a known type" : "another type", "F32");
    }
    std::vector<float> values(tensor->elements());  // its bytes are in the file
    read_elements(*tensor, 0, values);
    return values;
  }

 private:
  const std::vector<std::uint64_t>* shape_of(std::string_view name) const {
    if (const StoredTensor* tensor = file_.find(name)) return &tensor->shape;
    for (const SkippedTensor& tensor : file_.stored.skipped) {
      if (tensor.name == name) return &tensor.shape;
    }
    return nullptr;
  }

  const GgufFile& file_;
  std::string prefix_;
};

/// A share of the head that the reader of `partial_rotary_factor`, which cuts the product to a
/// whole number, turns back into `dims`.
double share_of(std::uint64_t dims, std::uint64_t head_dim) {
  const double share = static_cast<double>(dims) / static_cast<double>(head_dim);
  const double product = share * static_cast<double>(head_dim);
  return product < static_cast<double>(dims) ? std::nextafter(share, 2.0) : share;
}

std::uint64_t head_dim_of(const Reader& r) {
  if (r.has("attention.key_length")) {
    const std::uint64_t head_dim = r.whole("attention.key_length");
    if (r.whole_or("attention.value_length", head_dim) != head_dim) {
      r.metadata().fail(r.key("attention.value_length"), "another length than the keys'",
                        std::to_string(head_dim));
    }
    return head_dim;
  }
  const std::uint64_t heads = r.whole("attention.head_count");
  const std::uint64_t hidden = r.whole("embedding_length");
  if (heads == 0 || hidden % heads != 0) {
    r.metadata().fail(r.key("embedding_length"), std::to_string(hidden),
                      "a multiple of the " + std::to_string(heads) + " attention heads");
  }
  return hidden / heads;
}

/// Hugging Face's `rope_scaling`, or null.
json rope_scaling(const Reader& r) {
  std::string type(r.metadata().text_or(r.key("rope.scaling.type"), "none"));
  double factor = r.number_or("rope.scaling.factor", 1);
  if (r.has("rope.scale_linear")) {  // as files spelled it before there were other types
    type = "linear";
    factor = r.number("rope.scale_linear");
  }
  const bool is_linear = type == "linear" && factor != 1;
  const std::string_view factors = "rope_freqs.weight";
  if (r.has_tensor(factors)) {
    if (is_linear) r.metadata().fail(r.key("rope.scaling.type"), type, "none beside rope_freqs");
    return {{"rope_type", "frequency_factors"}, {"factors", r.values(factors)}};
  }
  if (r.has_tensor("rope_factors_short.weight")) {
    return {{"rope_type", "longrope"}, {"short_factor", r.values("rope_factors_short.weight")}};
  }
  if (is_linear) return {{"rope_type", "linear"}, {"factor", factor}};
  // "none" and a factor of 1 scale nothing; read_config refuses "yarn".
  if (type == "none" || type == "linear") return nullptr;
  return {{"rope_type", type}, {"factor", factor}};
}

/// The entries of Llama's shape.
json llama_like(const Reader& r, const char* model_type) {
  const std::uint64_t head_dim = head_dim_of(r);
  const std::uint64_t heads = r.whole("attention.head_count");
  json c{{"model_type", model_type},
         {"hidden_size", r.whole("embedding_length")},
         {"intermediate_size", r.whole("feed_forward_length")},
         {"num_hidden_layers", r.num_layers()},
         {"num_attention_heads", heads},
         {"num_key_value_heads", r.whole_or("attention.head_count_kv", heads)},
         {"head_dim", head_dim},
         {"max_position_embeddings", r.whole("context_length")},
         {"rope_theta", r.number_or("rope.freq_base", 10000)},
         {"attention_bias", r.has_tensor("blk.0.attn_q.bias")},
         {"mlp_bias", r.has_tensor("blk.0.ffn_up.bias")}};
  if (r.has("attention.layer_norm_rms_epsilon")) {
    c["rms_norm_eps"] = r.number("attention.layer_norm_rms_epsilon");
  }
  const std::uint64_t rotary_dims = r.whole_or("rope.dimension_count", head_dim);
  if (rotary_dims != head_dim) c["partial_rotary_factor"] = share_of(rotary_dims, head_dim);
  if (const json scaling = rope_scaling(r); !scaling.is_null()) c["rope_scaling"] = scaling;
  if (r.whole_or("expert_count", 0) > 0) c["num_local_experts"] = r.whole("expert_count");
  return c;
}

json llama(const Reader& r) {
  json c = llama_like(r, "llama");
  c["rms_norm_eps"] = r.number("attention.layer_norm_rms_epsilon");
  return c;
}

json qwen2(const Reader& r) {
  json c = llama(r);
  c["model_type"] = "qwen2";
  c["attention_bias"] = false;  // the family's biases on query, key and value are not this switch
  return c;
}

json olmo(const Reader& r) {
  json c = llama_like(r, "olmo");
  const double clamp = r.number_or("attention.clamp_kqv", 0);
  if (clamp != 0) c["clip_qkv"] = clamp;
  return c;
}

json phi3(const Reader& r) {
  json c = llama(r);
  c["model_type"] = "phi3";
  if (r.has("rope.scaling.original_context_length")) {
    c["original_max_position_embeddings"] = r.whole("rope.scaling.original_context_length");
  }
  const std::uint64_t window = r.whole_or("attention.sliding_window", 0);
  if (window > 0) c["sliding_window"] = window;
  return c;
}

json gemma(const Reader& r) {
  json c = llama(r);
  c["model_type"] = "gemma";
  return c;
}

json gemma2(const Reader& r) {
  json c = gemma(r);
  c["model_type"] = "gemma2";
  // llama.cpp's own defaults: files of the first days lack the three.
  c["attn_logit_softcapping"] = r.number_or("attn_logit_softcapping", 50);
  c["final_logit_softcapping"] = r.number_or("final_logit_softcapping", 30);
  c["sliding_window"] = r.whole_or("attention.sliding_window", 4096);
  // No key says it. All of the family scale by the head's size but the 27B model, 46 layers, which
  // llama.cpp too tells by their number (src/models/gemma2.cpp).
  constexpr std::uint64_t layers_of_27b = 46;
  const std::uint64_t heads = r.whole("attention.head_count");
  const bool is_27b = r.num_layers() == layers_of_27b && heads > 0;
  c["query_pre_attn_scalar"] = is_27b ? r.whole("embedding_length") / heads : head_dim_of(r);
  return c;
}

json gpt2(const Reader& r) {
  return {{"model_type", "gpt2"},
          {"n_embd", r.whole("embedding_length")},
          {"n_inner", r.whole("feed_forward_length")},
          {"n_layer", r.num_layers()},
          {"n_head", r.whole("attention.head_count")},
          {"n_positions", r.whole("context_length")},
          {"layer_norm_epsilon", r.number("attention.layer_norm_epsilon")}};
}

json gpt_neox(const Reader& r) {
  const std::uint64_t head_dim = head_dim_of(r);
  json c{{"model_type", "gpt_neox"},
         {"hidden_size", r.whole("embedding_length")},
         {"intermediate_size", r.whole("feed_forward_length")},
         {"num_hidden_layers", r.num_layers()},
         {"num_attention_heads", r.whole("attention.head_count")},
         {"max_position_embeddings", r.whole("context_length")},
         {"use_parallel_residual", r.metadata().flag_or(r.key("use_parallel_residual"), true)},
         {"rotary_pct", share_of(r.whole("rope.dimension_count"), head_dim)},
         {"rotary_emb_base", r.number_or("rope.freq_base", 10000)},
         {"layer_norm_eps", r.number("attention.layer_norm_epsilon")},
         {"attention_bias", r.has_tensor("blk.0.attn_qkv.bias")}};
  if (const json scaling = rope_scaling(r); !scaling.is_null()) c["rope_scaling"] = scaling;
  return c;
}

json falcon(const Reader& r) {
  const std::uint64_t kv_heads = r.whole_or("attention.head_count_kv", 1);
  const bool grouped = kv_heads > 1;
  json c{{"model_type", "falcon"},
         {"hidden_size", r.whole("embedding_length")},
         {"ffn_hidden_size", r.whole("feed_forward_length")},
         {"num_hidden_layers", r.num_layers()},
         {"num_attention_heads", r.whole("attention.head_count")},
         {"num_kv_heads", kv_heads},
         {"new_decoder_architecture", grouped},
         {"num_ln_in_parallel_attn", r.has_tensor("blk.0.attn_norm_2.weight") ? 2 : 1},
         {"max_position_embeddings", r.whole("context_length")},
         {"rope_theta", r.number_or("rope.freq_base", 10000)},
         {"layer_norm_epsilon", r.number("attention.layer_norm_epsilon")},
         {"bias", r.has_tensor("blk.0.attn_qkv.bias")}};
  if (const json scaling = rope_scaling(r); !scaling.is_null()) c["rope_scaling"] = scaling;
  return c;
}

json openelm(const Reader& r) {
  const std::uint64_t hidden = r.whole("embedding_length");
  // Apple's config gives multiples of the width and rounds; a divisor of 1 gives the widths back.
  std::vector<double> multipliers;
  for (const std::uint64_t width : r.by_layer("feed_forward_length")) {
    multipliers.push_back(static_cast<double>(width) / static_cast<double>(hidden));
  }
  return {{"model_type", "openelm"},
          {"model_dim", hidden},
          {"num_transformer_layers", r.num_layers()},
          {"head_dim", r.whole("attention.key_length")},
          {"num_query_heads", r.by_layer("attention.head_count")},
          {"num_kv_heads", r.by_layer("attention.head_count_kv")},
          {"ffn_multipliers", multipliers},
          {"ffn_dim_divisor", 1},
          {"ffn_with_glu", r.has_tensor("blk.0.ffn_gate.weight")},
          {"normalize_qk_projections", r.has_tensor("blk.0.attn_q_norm.weight")},
          {"rope_freq_constant", r.number_or("rope.freq_base", 10000)},
          {"max_context_length", r.whole("context_length")}};
}

struct Family {
  const char* architecture;
  json (*config)(const Reader&);
};

constexpr std::array families{
    Family{"llama", llama},     Family{"qwen2", qwen2},      Family{"phi3", phi3},
    Family{"gemma", gemma},     Family{"gemma2", gemma2},    Family{"gpt2", gpt2},
    Family{"olmo", olmo},       Family{"gptneox", gpt_neox}, Family{"falcon", falcon},
    Family{"openelm", openelm},
};

bool is_printable_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

json gguf_config(const GgufFile& file) {
  const Reader reader(file);
  const GgufMetadata& metadata = file.metadata;
  const std::string_view architecture = metadata.text("general.architecture");
  const auto family = std::find_if(families.begin(), families.end(),
                                   [&](const Family& f) { return architecture == f.architecture; });
  if (family == families.end()) {
    std::vector<std::string> known;
    for (const Family& f : families) known.emplace_back(f.architecture);
    throw Error(file.file->path() + ": metadata general.architecture: " +
                unknown_name("architecture", shortened(architecture), known).what());
  }
  if (metadata.whole_or("split.count", 1) > 1) {
    metadata.fail("split.count", std::to_string(metadata.whole("split.count")),
                  "1: join the parts of a split model with llama-gguf-split --merge");
  }
  json config = family->config(reader);
  const bool tied = !file.has("output.weight");
  config["vocab_size"] = reader.vocab_size();
  config[architecture == "openelm" ? "share_input_output_layers" : "tie_word_embeddings"] = tied;
  const std::string_view name = metadata.text_or("general.name", "");
  // Odd bytes would be no valid JSON.
  if (!name.empty() && is_printable_ascii(name)) config["_name_or_path"] = name;
  return config;
}

}  // namespace kvcast
