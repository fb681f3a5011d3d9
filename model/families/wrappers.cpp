#include "model/families/wrappers.h"

#include <algorithm>
#include <iterator>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/families/inert_keys.h"

namespace kvcast {
namespace {

using nlohmann::json;

constexpr Wrapper wrappers[] = {
    {.model_type = "gemma3", .text_type = "gemma3_text", .ties = true},
    {.model_type = "gemma3n", .text_type = "gemma3n_text", .ties = true, .scales_logits = true},
    {.model_type = "mistral3", .text_type = "mistral", .ties = true},
    {.model_type = "llama4", .text_type = "llama4_text"},
    {.model_type = "kimi_k25", .text_type = "deepseek_v3", .ties = true},
    {.model_type = "llava", .text_type = "llama", .ties_if_text_does = true},
    {.model_type = "llava_next", .text_type = "llama"},
    {.model_type = "llava_onevision", .text_type = "qwen2", .ties_if_text_does = true},
    {.model_type = "vipllava", .text_type = "llama"},
    {.model_type = "video_llava", .text_type = "llama"},
    {.model_type = "internvl", .text_type = "qwen2", .ties = true},
    {.model_type = "aya_vision", .text_type = "cohere2", .ties = true},
    {.model_type = "cohere2_vision", .text_type = "cohere2", .ties = true},
    {.model_type = "qwen2_vl", .text_type = "qwen2_vl_text", .may_be_flat = true},
    {.model_type = "qwen2_5_vl", .text_type = "qwen2_5_vl_text", .may_be_flat = true},
    {.model_type = "qwen3_vl", .text_type = "qwen3_vl_text"},
    {.model_type = "qwen3_vl_moe", .text_type = "qwen3_vl_moe_text"},
    {.model_type = "qwen3_5", .text_type = "qwen3_5_text"},
    {.model_type = "qwen3_5_moe", .text_type = "qwen3_5_moe_text"},
};

/// What the class of a text model says where a nested config says nothing and its family has no
/// default: files of their own always have these keys.
struct TextClass {
  std::string_view model_type;
  std::string_view family;  ///< that reads it
  bool tied = false;
  const char* defaults = nullptr;  ///< JSON
  /// JSON: the same without what it does to logits alone; null: nothing.
  const char* plain_logits = nullptr;
};

constexpr const char* no_softcap = R"({"final_logit_softcapping": null})";

constexpr const char* llama_sizes =
    R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048})";

constexpr const char* qwen_sizes =
    R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 32768})";

constexpr const char* deepseek_v3_sizes =
    R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "max_position_embeddings": 4096})";

constexpr const char* qwen2_vl_sizes =
    R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64, "max_position_embeddings": 32768,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80,
        "rope_theta": 1000000.0})";

constexpr TextClass text_classes[] = {
    {"llama", "llama", false, llama_sizes},
    {"mistral", "mistral", false,
     R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 131072})"},
    {"ministral3", "ministral3", false,
     R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 34, "num_attention_heads": 32, "max_position_embeddings": 262144})"},
    {"mistral4", "mistral4", false,
     R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
         "num_hidden_layers": 36, "num_attention_heads": 32, "max_position_embeddings": 1048576})"},
    {"qwen2", "qwen2", false, qwen_sizes},
    {"qwen3", "qwen3", false, qwen_sizes},
    {"gemma2", "gemma2", true,
     R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "max_position_embeddings": 8192})",
     no_softcap},
    {"gemma3_text", "gemma3_text", true,
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "max_position_embeddings": 131072})",
     no_softcap},
    {"granite", "granite", false, llama_sizes, R"({"logits_scaling": 1.0})"},
    {"cohere2", "cohere2", true,
     R"({"vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
         "num_hidden_layers": 40, "num_attention_heads": 64, "max_position_embeddings": 8192})",
     R"({"logit_scale": 1.0})"},
    {"llama4_text", "llama4_text", false,
     R"({"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
         "num_hidden_layers": 48, "num_attention_heads": 40, "max_position_embeddings": 131072})"},
    {"deepseek_v3", "deepseek_v3", false, deepseek_v3_sizes},
    {"kimi_k2", "kimi_k2", false, deepseek_v3_sizes},
    {"qwen2_vl_text", "qwen2", false, qwen2_vl_sizes},
    {"qwen2_5_vl_text", "qwen2", false, qwen2_vl_sizes},
    {"gemma3n_text", "gemma3n_text", true,
     R"({"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384,
         "num_hidden_layers": 35, "num_attention_heads": 8, "max_position_embeddings": 32768})"},
    {"qwen3_5_text", "qwen3_5_text", false,
     R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
         "num_hidden_layers": 32, "num_attention_heads": 16, "max_position_embeddings": 32768})"},
    {"qwen3_5_moe_text", "qwen3_5_moe_text", false,
     R"({"vocab_size": 248320, "hidden_size": 2048, "moe_intermediate_size": 512,
         "num_hidden_layers": 40, "num_attention_heads": 16, "max_position_embeddings": 32768})"},
    {"qwen3_vl_text", "qwen3", false,
     R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
         "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 128000,
         "rope_theta": 500000.0})"},
    {"qwen3_vl_moe_text", "qwen3_vl_moe_text", false,
     R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
         "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 128000})"},
};

/// Keys of wrappers that say nothing about the text model.
bool is_of_other_inputs(std::string_view key) {
  static constexpr std::string_view beginnings[] = {
      "vision_",     "image_",  "video_",     "audio_",      "mm_", "multimodal_", "projector_",
      "projection_", "adapter", "downsample", "media_token", "vt_", "alignment_",  "spatial_merge"};
  const auto begins = [&](std::string_view beginning) { return key.starts_with(beginning); };
  return is_inert_key(key) || key.ends_with("_token_index") || key == "text_config" ||
         key == "tie_word_embeddings" || key == "quantization_config" || key == "ignore_index" ||
         key == "use_image_newline_parameter" ||
         std::any_of(std::begin(beginnings), std::end(beginnings), begins);
}

/// Rotations by several coordinates: those of a text token are all its position.
void drop_coordinates(json& config) {
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_object() || !found->contains("mrope_section")) continue;
    found->erase("mrope_section");
    found->erase("mrope_interleaved");
    for (const char* const name : {"type", "rope_type"}) {
      if (found->value(name, json()) == "mrope") (*found)[name] = "default";
    }
  }
}

const TextClass* find_text_class(std::string_view model_type) {
  const auto* const found =
      std::find_if(std::begin(text_classes), std::end(text_classes),
                   [&](const TextClass& t) { return t.model_type == model_type; });
  return found == std::end(text_classes) ? nullptr : found;
}

}  // namespace

const Wrapper* find_wrapper(std::string_view model_type) {
  const auto* const found = std::find_if(std::begin(wrappers), std::end(wrappers),
                                         [&](auto& w) { return w.model_type == model_type; });
  return found == std::end(wrappers) ? nullptr : found;
}

std::vector<std::string> wrapper_model_types() {
  std::vector<std::string> types;
  for (const Wrapper& w : wrappers) types.emplace_back(w.model_type);
  return types;
}

std::optional<TextConfig> text_config(const json& config, const std::string& place) {
  if (!config.is_object() || !config.contains("model_type")) return {};
  const json& type = config.at("model_type");
  const Wrapper* const wrapper = type.is_string() ? find_wrapper(type.get<std::string>()) : nullptr;
  if (wrapper == nullptr) return {};
  const JsonObject outer(config, place);
  const bool flat = wrapper->may_be_flat && !outer.has("text_config");
  const JsonObject nested = flat ? outer : outer.object("text_config");
  json given = flat ? config : config.at("text_config");
  if (flat) given.erase("model_type");
  TextConfig text{json::object(), nested.place(), {}};

  const std::string usual(wrapper->text_type);
  const std::string text_type = flat ? usual : nested.text_or("model_type", usual);
  const TextClass* const known = find_text_class(text_type);
  if (known != nullptr) text.config = json::parse(known->defaults);
  for (const auto& [key, value] : given.items()) text.config[key] = value;
  drop_coordinates(text.config);
  if (known != nullptr && known->plain_logits != nullptr && !wrapper->scales_logits) {
    text.config.update(json::parse(known->plain_logits));
  }

  const bool text_ties = known != nullptr && known->tied;
  const bool inner = !flat && nested.flag_or("tie_word_embeddings", text_ties);
  const bool tied = outer.flag_or("tie_word_embeddings", inner);
  text.config["tie_word_embeddings"] = tied || (wrapper->ties_if_text_does && inner);
  if (outer.has("quantization_config") && !flat && !nested.has("quantization_config")) {
    text.config["quantization_config"] = config.at("quantization_config");
  }
  for (const std::string& key : outer.keys()) {
    if (is_of_other_inputs(key)) {
      const bool shared = key == "tie_word_embeddings" || key == "quantization_config";
      if (flat && !shared) text.config.erase(key);
    } else if (!flat && text.config.value(key, json()) != config.at(key)) {
      text.unknown_keys.push_back(key);
    }
  }
  text.config["model_type"] = known != nullptr ? std::string(known->family) : text_type;
  return text;
}

const std::vector<std::string>& wrapper_prefixes() {
  static const std::vector<std::string> prefixes{"language_model.model.", "model.language_model.",
                                                 "language_model.", "model."};
  return prefixes;
}

const std::vector<std::string>& wrapper_heads() {
  static const std::vector<std::string> heads{"language_model.lm_head", "lm_head"};
  return heads;
}

bool is_text_tensor(std::string_view stored_name) {
  return stored_name.starts_with("language_model.") ||
         stored_name.starts_with("model.language_model.") ||
         stored_name.starts_with("model.layers.") || stored_name.starts_with("lm_head.");
}

}  // namespace kvcast
