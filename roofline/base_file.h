/// Data files that take over what another file in their folder has.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/base/json_file.h"

namespace kvcast::roofline {

/// The file that `key` of the file at `path` names, which builds on no other one itself. Throws
/// Error naming the file and the key.
nlohmann::json read_base(const JsonObject& o, const std::filesystem::path& path,
                         const std::string& key);

}  // namespace kvcast::roofline
