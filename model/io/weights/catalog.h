/// Finds models and hardware: catalog names under `data/`, or files given by path.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"
#include "model/families/config_reader.h"

namespace kvcast {

/// The `data/` folder: `models/NAME.json`, `hardware/NAME.json`, `published/`, ...
class Catalog {
 public:
  /// Throws Error when `root` holds no `models` folder.
  explicit Catalog(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }
  /// A subfolder. Throws Error when there is none.
  std::filesystem::path folder(std::string_view name) const;
  /// Names of the JSON files in a subfolder, sorted.
  std::vector<std::string> names(std::string_view name) const;
  /// The file that a user means by `name_or_path`: a catalog name of `subfolder`, a file, or a
  /// folder that holds `config.json`. Throws Error with the nearest name ("unknown KIND ...").
  std::filesystem::path find(std::string_view subfolder, std::string_view kind,
                             const std::string& name_or_path) const;

 private:
  std::filesystem::path root_;
};

/// The model of a catalog name, a config.json, a checkpoint folder or a GGUF file, after the
/// overrides, which name config.json's keys for all of them. Throws Error as read_config does.
Architecture load_model(const Catalog& catalog, const std::string& name_or_path,
                        const std::vector<ConfigOverride>& overrides = {});

}  // namespace kvcast
