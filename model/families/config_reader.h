/// Reads Hugging Face `config.json` files into an Architecture.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/config/architecture.h"

namespace kvcast {

/// `--set KEY=VALUE`: replaces one entry of a config before it is read.
struct ConfigOverride {
  std::string key;
  std::string value;  ///< not empty: JSON, or a bare word taken as a string
};

/// Throws Error: unknown model_type, missing, impossible or contradictory entries, unknown override
/// keys. `place` is the file name that errors start with; `name` becomes the architecture's name.
Architecture read_config(const nlohmann::json& config, const std::string& name,
                         const std::string& place,
                         const std::vector<ConfigOverride>& overrides = {});

/// What a user of the configuration should know: keys that its reader does not know, and weights
/// stored in another form than forecasts take.
std::vector<std::string> config_warnings(const Architecture& a);

/// "llama", "phi3", ...: the values of `model_type` that can be read.
std::vector<std::string> supported_model_types();

}  // namespace kvcast
