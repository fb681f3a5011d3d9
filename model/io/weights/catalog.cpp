#include "model/io/weights/catalog.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"

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

fs::path Catalog::find(std::string_view subfolder, std::string_view kind,
                       const std::string& name_or_path) const {
  const std::vector<std::string> known = names(subfolder);
  if (std::binary_search(known.begin(), known.end(), name_or_path)) {
    return folder(subfolder) / (name_or_path + ".json");
  }
  const fs::path path(name_or_path);
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    if (fs::exists(path / "config.json", ec)) return path / "config.json";
    throw Error(path.string(), "a folder without config.json",
                "a checkpoint folder with config.json");
  }
  if (fs::exists(path, ec)) return path;
  const bool looks_like_path = name_or_path.find('/') != std::string::npos ||
                               path.extension() == ".json" || path.extension() == ".gguf";
  if (looks_like_path) throw Error(name_or_path + ": no such file");
  constexpr std::size_t most_in_a_message = 12;
  const bool has_list_command = subfolder == "models" || subfolder == "hardware";
  if (has_list_command && known.size() > most_in_a_message &&
      nearest(name_or_path, known).empty()) {
    throw Error(fmt::format("unknown {0} '{1}'; see kvcast {0} list", kind, name_or_path));
  }
  throw unknown_name(kind, name_or_path, known);
}

Architecture load_model(const Catalog& catalog, const std::string& name_or_path,
                        const std::vector<ConfigOverride>& overrides) {
  const fs::path path = catalog.find("models", "model", name_or_path);
  std::string name = path.stem().string();
  fs::path origin = path;
  nlohmann::json config;
  if (path.extension() == ".gguf") {
    config = gguf_config(read_gguf(MappedFile::open(path)));
  } else {
    config = read_json_file(path);
    if (name == "config") {
      origin = fs::absolute(path).parent_path();
      if (origin.has_filename()) name = origin.filename().string();
    }
  }
  Architecture a = read_config(config, name, path.string(), overrides);
  if (overrides.empty()) a.origin = origin;
  return a;
}

}  // namespace kvcast
