#include "model/io/weights/catalog.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/routed_tokens.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace fs = std::filesystem;

Catalog::Catalog(fs::path root) : root_(std::move(root)) { folder("models"); }

fs::path Catalog::folder(std::string_view name) const {
  std::error_code ec;
  fs::path path = root_ / name;
  if (!fs::is_directory(path, ec)) {
    throw Error("data folder " + root_.string(), "no folder '" + std::string(name) + "' in it",
                "kvcast's data folder (set KVCAST_DATA, or pass --data)");
  }
  return path;
}

std::vector<std::string> Catalog::names(std::string_view name) const {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder(name))) {
    if (entry.path().extension() == ".json") found.push_back(entry.path().stem().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> Catalog::other_names(std::string_view subfolder,
                                              std::string_view name) const {
  const fs::path file = folder(subfolder) / (std::string(name) + ".json");
  const nlohmann::json document = read_json_file(file);
  const JsonObject o(document, file.string());
  if (o.has("aliases")) return o.texts("aliases");
  if (!o.has("_kvcast")) return {};
  const JsonObject ours = o.object("_kvcast");
  return ours.has("hub_names") ? ours.texts("hub_names") : std::vector<std::string>();
}

std::string Catalog::known_as(std::string_view subfolder, const std::vector<std::string>& known,
                              std::string_view word) const {
  const std::string lower = lower_case(word);
  if (std::binary_search(known.begin(), known.end(), lower)) return lower;
  const auto is_meant = [&](const std::string& other) {
    const std::string name = lower_case(other);
    return name == lower || name.substr(name.find('/') + 1) == lower;
  };
  for (const std::string& name : known) {
    const std::vector<std::string> others = other_names(subfolder, name);
    if (std::any_of(others.begin(), others.end(), is_meant)) return name;
  }
  return "";
}

std::string Catalog::canonical(std::string_view subfolder, const std::string& name_or_path) const {
  std::error_code ec;
  if (fs::exists(name_or_path, ec)) return name_or_path;
  std::string name = known_as(subfolder, names(subfolder), name_or_path);
  return name.empty() ? name_or_path : name;
}

fs::path Catalog::find(std::string_view subfolder, std::string_view kind,
                       const std::string& name_or_path) const {
  const std::vector<std::string> known = names(subfolder);
  const auto file_of = [&](const std::string& name) {
    return folder(subfolder) / (name + ".json");
  };
  if (std::binary_search(known.begin(), known.end(), name_or_path)) return file_of(name_or_path);
  const fs::path path(name_or_path);
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    if (subfolder == "models" && fs::exists(path / "config.json", ec)) return path / "config.json";
    if (subfolder != "models") throw Error(path.string(), "a folder", "a name or a JSON file");
    throw Error(path.string(), "a folder without config.json",
                "a checkpoint folder with config.json");
  }
  if (fs::exists(path, ec)) return path;
  const bool has_list_command = subfolder == "models" || subfolder == "hardware";
  const bool is_file_name = path.extension() == ".json" || path.extension() == ".gguf";
  if (has_list_command && !is_file_name) {
    if (const std::string name = known_as(subfolder, known, name_or_path); !name.empty()) {
      return file_of(name);
    }
  }
  // "Qwen/Qwen3-9B" may be a path or a name of the hub: owner and model.
  const std::size_t slash = name_or_path.find('/');
  const bool looks_like_path = slash != std::string::npos || is_file_name;
  const bool may_be_on_hub = slash != std::string::npos && slash == name_or_path.rfind('/') &&
                             !name_or_path.starts_with('.') && slash > 0 && !is_file_name;
  const std::string hint =
      has_list_command && (may_be_on_hub || !looks_like_path)
          ? did_you_mean(may_be_on_hub ? name_or_path.substr(slash + 1) : name_or_path, known)
          : "";
  if (looks_like_path) {
    throw Error(name_or_path + ": no such file" + (hint.empty() ? "" : "; " + hint));
  }
  constexpr std::size_t most_in_a_message = 12;
  if (has_list_command && hint.empty() && known.size() > most_in_a_message) {
    throw Error(fmt::format("unknown {0} '{1}'; see kvcast {0} list", kind, name_or_path));
  }
  throw unknown_name(kind, name_or_path, known);
}

Architecture load_model(const Catalog& catalog, const std::string& name_or_path,
                        std::vector<ConfigOverride> overrides) {
  const fs::path path = catalog.find("models", "model", name_or_path);
  std::string name = path.stem().string();
  fs::path origin = path;
  nlohmann::json config;
  std::optional<GgufFile> file;
  if (path.extension() == ".gguf") {
    file = read_gguf(MappedFile::open(path));
    config = gguf_config(*file);
  } else {
    config = read_json_file(path);
    if (name == "config") {
      origin = fs::absolute(path).parent_path();
      if (origin.has_filename()) name = origin.filename().string();
    }
  }
  const auto taken = [&](std::string_view key) {
    std::optional<std::string> value;
    std::erase_if(overrides, [&](const ConfigOverride& o) {
      if (o.key != key) return false;
      value = o.value;
      return true;
    });
    return value;
  };
  const std::optional<std::string> expert_tokens = taken(expert_tokens_key);
  const std::optional<std::string> expert_draws = taken(expert_draws_key);
  const std::optional<std::string> expert_copies = taken(expert_copies_key);
  Architecture a = read_config(config, name, path.string(), overrides);
  if (expert_tokens) expect_routed_tokens(*expert_tokens, a);
  if (expert_draws) expect_fullest(*expert_draws, a);
  if (expert_copies) copy_experts(*expert_copies, a);
  if (overrides.empty()) a.origin = origin;  // loads of experts change no weight
  if (file) {
    a.stored_weights = gguf_weight_types(*file, a);
    // Quantised files leave activations and cache open; llama.cpp's cache is fp16.
    const DType most = a.stored_weights->main;
    const bool is_plain = most == DType::FP32 || most == DType::BF16;
    a.published_dtype = is_plain ? most : DType::FP16;
  }
  return a;
}

std::function<Architecture(const std::string&)> find_model_in(Catalog catalog) {
  return
      [catalog = std::move(catalog)](const std::string& name) { return load_model(catalog, name); };
}

}  // namespace kvcast
