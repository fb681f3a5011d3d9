#include "reports/reproduce/table_rules.h"

#include <filesystem>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "reports/reproduce/serving_study.h"

namespace kvcast::reports {
namespace {

using nlohmann::json;

const std::set<std::string, std::less<>>& cell_keys() {
  static const std::set<std::string, std::less<>> keys{
      "column",   // that holds the printed number
      "cell",     // what it is called
      "ours",     // our number, or what `per` divides
      "per",      // of formulas: what `ours` is over
      "formula",  // column of a printed formula, in the place of a printed number
      "meaning",  // of a cell whose formula is said in words
      "verdict",  // exact, measured or bound
      "fitted",   // conditions of measured cells that a factor was fitted to
      "once",     // column: of rows with the same text there only the first, the others repeat it
      "known",    // column: not where its number is wrong and nobody knows the right one
      "label",    // column of the row's name, which an erratum may replace
      "erratum",  // another column whose errata concern the cell
      "prompt_len"};
  return keys;
}

/// Reads a file's rules.
class RuleReader {
 public:
  RuleReader(const json& file, std::string place) : file_(file), place_(std::move(place)) {}

  std::shared_ptr<const Rule> rule(const json& value, const Rule& around) const {
    if (!value.is_object()) fail(value, "an object");
    auto rule = std::make_shared<Rule>();
    rule->cell = around.cell;
    rule->with = around.with;
    rule->at = around.at;
    const json* rules = nullptr;
    for (const auto& [key, v] : value.items()) {
      if (key == "name" || key == "title" || key == "comment" || key == "serving") continue;
      if (key == "file") {
        rule->file = text(v);
      } else if (key == "where") {
        rule->where = text(v);
      } else if (key == "one_of") {
        rule->one_of = text(v);
      } else if (key == "each") {
        for (const auto& [name, list] : v.items()) rule->each[name] = texts(list);
      } else if (key == "let") {
        rule->words = words(v);
      } else if (key == "with") {
        for (auto& [name, formula] : words(v)) rule->with[name] = formula;
      } else if (key == "at") {
        rule->at = texts(v);
      } else if (key == "rules") {
        rules = &v;
      } else if (cell_keys().contains(key)) {
        rule->cell[key] = text(v);
      } else {
        throw Error(place_, unknown_name("key", key, {cell_keys().begin(), cell_keys().end()}));
      }
    }
    if (rules != nullptr) add_rules(*rules, *rule);
    return rule;
  }

  Words words(const json& value) const {
    if (!value.is_object()) fail(value, "an object of texts");
    Words words;
    for (const auto& [name, word] : value.items()) words[name] = text(word);
    return words;
  }

 private:
  [[noreturn]] void fail(const json& value, std::string_view expected) const {
    throw Error(place_, shown(value), expected);
  }

  /// A list, or the name of one under "shared".
  void add_rules(const json& rules, Rule& rule) const {
    const json* list = &rules;
    if (rules.is_string()) {
      const auto shared = file_.find("shared");
      if (shared == file_.end() || !shared->contains(text(rules))) fail(rules, "a shared list");
      list = &shared->at(text(rules));
    }
    if (!list->is_array()) fail(rules, "a list of rules");
    for (const json& child : *list) rule.rules.push_back(this->rule(child, rule));
  }

  std::string text(const json& value) const {
    if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
    if (!value.is_string()) fail(value, "a text or a whole number");
    return value.get<std::string>();
  }
  std::vector<std::string> texts(const json& value) const {
    if (!value.is_array()) fail(value, "a list");
    std::vector<std::string> list;
    for (const json& v : value) list.push_back(text(v));
    return list;
  }

  const json& file_;
  std::string place_;
};

const json& required(const json& object, const char* key, const std::string& place) {
  if (!object.is_object() || !object.contains(key)) {
    throw Error(place, "no '" + std::string(key) + "'", "one");
  }
  return object.at(key);
}

std::vector<PublishedTable> tables_of(const json& paper, const std::string& group) {
  const std::string name = group + ".json";
  const RuleReader reader(paper, name);
  Paper shared{name, {}, {}};
  if (paper.contains("let")) shared.words = reader.words(paper.at("let"));
  if (paper.contains("catalog_names")) {
    shared.catalog_names = reader.words(paper.at("catalog_names"));
  }
  std::vector<PublishedTable> tables;
  for (const json& table : required(paper, "tables", name)) {
    Rule around;
    around.cell["verdict"] = table.value("verdict", "exact");
    const std::shared_ptr<const Rule> rule = reader.rule(table, around);
    tables.push_back({required(table, "name", name), group, required(table, "title", name),
                      around.cell["verdict"] == "measured" ? TableKind::Measured : TableKind::Exact,
                      [rule, shared](const Catalog& catalog, const std::string& engine) {
                        return evaluate_table(*rule, shared, catalog, engine);
                      },
                      required(paper, "title", name)});
    if (table.value("serving", false)) tables.back().serving = specprefill_serving;
  }
  return tables;
}

}  // namespace

std::vector<PublishedTable> published_tables(const Catalog& catalog) {
  const std::filesystem::path folder = catalog.folder("published");
  std::map<std::pair<std::uint64_t, std::string>, json> papers;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    json paper = read_json_file(entry.path());
    const std::uint64_t order = required(paper, "order", entry.path().filename().string());
    papers.emplace(std::make_pair(order, entry.path().stem().string()), std::move(paper));
  }
  std::vector<PublishedTable> tables;
  for (const auto& [key, paper] : papers) {
    for (PublishedTable& table : tables_of(paper, key.second)) tables.push_back(std::move(table));
  }
  return tables;
}

}  // namespace kvcast::reports
