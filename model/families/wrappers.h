/// Models of images, audio and text whose config.json nests the text model's under "text_config".
///
/// kvcast reads the text model alone: towers and projectors for other inputs are not modelled.
/// Sources: transformers, models/FAMILY/configuration_FAMILY.py, and conversion_mapping.py for the
/// names of tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvcast {

struct Wrapper {
  std::string_view model_type;
  std::string_view text_type;  ///< of a text_config without model_type
  /// The wrapper's class ties the head when config.json has no tie_word_embeddings beside
  /// text_config. Hub files of untied models rely on a head in the checkpoint.
  bool ties = false;
  bool ties_if_text_does = false;  ///< the text model's key holds as well as the wrapper's
  bool scales_logits = false;  ///< as the text model alone does; else logits are the head's output
  bool may_be_flat = false;    ///< older files have the text model's keys beside vision_config
};

/// Null when no wrapper has that model_type.
const Wrapper* find_wrapper(std::string_view model_type);
std::vector<std::string> wrapper_model_types();

/// The text model's configuration, as a file of its own would have it.
struct TextConfig {
  nlohmann::json config;
  std::string place;                      ///< that errors start with
  std::vector<std::string> unknown_keys;  ///< of the wrapper
};

/// Nothing when the config is no wrapper's. What text_config leaves out has the default of the text
/// model's class, sizes too. Throws Error for a wrapper without text_config.
std::optional<TextConfig> text_config(const nlohmann::json& config, const std::string& place);

/// Where files of wrappers keep the text model: before the names of the family, and the head.
/// transformers writes the first or, from 4.52 on, the second; the last is Qwen2-VL's.
const std::vector<std::string>& wrapper_prefixes();
const std::vector<std::string>& wrapper_heads();
/// False for tensors of towers and projectors.
bool is_text_tensor(std::string_view stored_name);

}  // namespace kvcast
