#include "roofline/base_file.h"

#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvcast::roofline {

nlohmann::json read_base(const JsonObject& o, const std::filesystem::path& path,
                         const std::string& key) {
  const std::string base = o.text(key);
  if (base.empty() || base.find_first_of("/\\") != std::string::npos || base.front() == '.') {
    o.fail(key, "the name of another file in its folder, without .json");
  }
  const std::filesystem::path file = path.parent_path() / (base + ".json");
  std::error_code ec;
  if (!std::filesystem::exists(file, ec))
    o.fail(key, "the name of a file in the same folder, without .json");
  nlohmann::json document = read_json_file(file);
  const JsonObject of_base(document, fmt::format("{}: /{}", path.string(), key));
  for (const char* builds_on : {"extends", "relative"}) {
    if (of_base.has(builds_on)) o.fail(key, "a file that builds on no other one");
  }
  return document;
}

}  // namespace kvcast::roofline
