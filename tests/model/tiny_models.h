/// Models that tests share.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/io/weights/catalog.h"
#include "tests/source_catalog.h"

namespace kvcast {

/// The model of a config.json, changed by a JSON merge patch (a null removes the key).
inline Architecture model_of(const std::string& config, const std::string& patch = "{}") {
  nlohmann::json changed = nlohmann::json::parse(config);
  changed.merge_patch(nlohmann::json::parse(patch));
  return read_config(changed, "tiny", "tiny.json");
}

/// 3 layers, hidden 48, 6 heads over 3, head_dim 8, MLP 20, vocabulary 51; `patch`: what differs.
inline Architecture tiny(const std::string& patch = "{}") {
  return model_of(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 20})",
                  patch);
}

/// The layers without their rotations, which tests compare on their own.
inline std::vector<LayerShape> unrotated(std::vector<LayerShape> layers) {
  for (LayerShape& layer : layers) layer.rope = nullptr;
  return layers;
}

}  // namespace kvcast
