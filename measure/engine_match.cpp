#include "measure/engine_match.h"

#include <algorithm>
#include <regex>

#include "model/base/error.h"
#include "roofline/engine.h"

namespace kvcast::measure {
namespace {

/// "0.6.3.post1", "v0.2", "b4748"; of the name's second word ("ExLlamaV2 4 bit") not a bare number.
std::string version_in(const std::string& text, bool bare_number) {
  static const std::regex dotted("v?[0-9]+(\\.[0-9]+)+([.-]?(post|rc|dev|a|b)[0-9]*)*");
  static const std::regex build("b?[0-9]+");
  static const std::regex commit_and_build(".*\\(([0-9]+)\\)");
  std::smatch found;
  if (std::regex_match(text, dotted)) return text;
  if (std::regex_match(text, build) && (bare_number || text[0] == 'b')) return text;
  return std::regex_match(text, found, commit_and_build) ? found[1].str() : "";
}

}  // namespace

EngineMatch::EngineMatch(const Catalog& catalog) {
  if (!std::filesystem::is_directory(catalog.root() / "engines")) return;
  const std::vector<std::string> names = catalog.names("engines");
  for (const std::string& name : names) names_.emplace(name, name);
  for (const std::string& name : names) {
    for (const std::string& alias : roofline::load_engine(catalog, name).aliases) {
      names_.emplace(lower_case(alias), name);
    }
  }
}

std::string EngineMatch::find(std::string_view engine, std::string_view version,
                              std::string_view month) const {
  const std::size_t blank = std::min(engine.find(' '), engine.size());
  const auto known = names_.find(lower_case(std::string(engine.substr(0, blank))));
  if (known == names_.end()) return roofline::Engine{}.name;
  const std::string& name = known->second;
  std::string found;
  if (name == known->first) {
    found = version_in(std::string(version), true);
    if (version.empty() && blank < engine.size()) {
      const std::string_view rest = engine.substr(blank + 1);
      found = version_in(std::string(rest.substr(0, rest.find(' '))), false);
    }
  }
  static const std::regex is_month("[0-9]{4}-[0-9]{2}");
  if (found.empty() && std::regex_match(month.begin(), month.end(), is_month)) found = month;
  return found.empty() ? name : name + ":" + found;
}

}  // namespace kvcast::measure
