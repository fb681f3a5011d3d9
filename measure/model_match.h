/// Which catalog model a measurement is of: by its name, a name as Hugging Face spells it, or its
/// number of parameters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/config_reader.h"
#include "model/io/weights/catalog.h"

namespace kvcast::measure {

class ModelMatch {
 public:
  explicit ModelMatch(const Catalog& catalog)
      : catalog_(catalog), names_(catalog.names("models")) {}

  /// A name that load_model takes; of models of one shape that with most positions. `parameters`: 0
  /// when unknown. Throws Error when none fits,
  /// several models of different shapes do, or the one of that name has others.
  std::string find(const std::string& name, std::uint64_t parameters);

 private:
  std::string search(const std::string& name, std::uint64_t parameters);
  std::string named(const std::string& name) const;

  Catalog catalog_;
  std::vector<std::string> names_;
  std::map<std::string, std::uint64_t> counted_;  ///< parameters of the catalog's, once asked for
  /// A file repeats its models.
  std::map<std::pair<std::string, std::uint64_t>, std::string> found_;
};

/// "opt-6.7b{vocab_size=51200}": the model, and the entries of its configuration that differ.
std::pair<std::string, std::vector<ConfigOverride>> split_overrides(const std::string& model);

/// "meta-llama/Llama-3.1-8B-Instruct" -> "llama-3.1-8b": without the owner and the endings that do
/// not change a shape.
std::string plain_model_name(std::string name);

/// "the catalog has no KIND 'NAME'; " and did_you_mean(): without a list of all names, since a
/// file may have many such rows.
std::string not_in_catalog(std::string_view kind, std::string_view name,
                           const std::vector<std::string>& names);

}  // namespace kvcast::measure
