/// Finds models and hardware: catalog names under `data/`, or files given by path.
#pragma once

#include <filesystem>
#include <functional>
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
  /// The catalog name that `name_or_path` means, or itself when that is a path or unknown.
  std::string canonical(std::string_view subfolder, const std::string& name_or_path) const;
  /// Names that a file of the catalog also has: a model's `hub_names` ("Qwen/Qwen3-8B", in
  /// `_kvcast`), the `aliases` of a device ("h100"). Throws Error when they are no list of names.
  std::vector<std::string> other_names(std::string_view subfolder, std::string_view name) const;
  /// The file that a user means by `name_or_path`: a catalog name of `subfolder`, a file, a
  /// folder that holds `config.json`, or in any case of letters a catalog name or another name of
  /// one, a hub name also without its owner. Throws Error with the nearest names ("unknown KIND
  /// ...").
  std::filesystem::path find(std::string_view subfolder, std::string_view kind,
                             const std::string& name_or_path) const;

 private:
  /// The catalog name in `known` that `word` also names, or "".
  std::string known_as(std::string_view subfolder, const std::vector<std::string>& known,
                       std::string_view word) const;

  std::filesystem::path root_;
};

/// The override that names a file for expect_routed_tokens().
inline constexpr std::string_view expert_tokens_key = "expert_tokens";
/// The override for Experts::draws.
inline constexpr std::string_view expert_draws_key = "expert_draws";

/// The override for Experts::copies.
inline constexpr std::string_view expert_copies_key = "expert_copies";

/// The model of a catalog name, a config.json, a checkpoint folder or a GGUF file, after the
/// overrides, which are the three above or name config.json's keys for all of them. Throws
/// Error as expect_routed_tokens and read_config do.
Architecture load_model(const Catalog& catalog, const std::string& name_or_path,
                        std::vector<ConfigOverride> overrides = {});
/// Finds the models that methods name, in a copy of the catalog.
std::function<Architecture(const std::string&)> find_model_in(Catalog catalog);

}  // namespace kvcast
