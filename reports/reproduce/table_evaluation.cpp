// From a table's rules and its CSV files to rows: printed numbers beside ours.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>

#include "model/base/error.h"
#include "reports/reproduce/formula.h"
#include "reports/reproduce/quantities.h"
#include "reports/reproduce/table_rules.h"

namespace kvcast::reports {
namespace {

/// What names mean where a rule is applied. The innermost rule that knows a name decides.
struct Scope {
  const Scope* around = nullptr;
  const CsvRow* row = nullptr;
  std::string label = {};  ///< column that an erratum of the row renames, and what to
  std::string renamed = {};
  const Words* words = nullptr;
  Words values = {};  ///< values of `each`, and numbered parts of matched patterns

  const CsvRow* row_around() const {
    return row != nullptr || around == nullptr ? row : around->row_around();
  }
};

/// One computation of a table.
class Evaluation {
 public:
  Evaluation(const Catalog& catalog, const Paper& paper, const std::string& engine)
      : catalog_(catalog),
        published_(catalog),
        paper_(paper),
        file_(paper.file),
        quantities_(make_quantities(catalog, engine)) {}

  std::vector<ReproducedRow> rows(const Rule& table) {
    apply(table, Scope{.words = &paper_.words});
    return std::move(rows_);
  }

 private:
  /// True if a row met the rule's conditions.
  bool apply(const Rule& rule, const Scope& around) {
    Scope scope{.around = &around, .words = &rule.words};
    if (rule.each.empty()) return apply_to_rows(rule, scope);
    bool any = false;
    for (const auto& [name, values] : rule.each) {
      for (const std::string& value : values) {
        scope.values[name] = expand(value, around);
        any = apply_to_rows(rule, scope) || any;
      }
    }
    return any;
  }

  bool apply_to_rows(const Rule& rule, const Scope& around) {
    if (rule.file.empty()) return apply_inside(rule, around);
    bool any = false;
    const CsvTable& table = read(expand(rule.file, around));
    for (const CsvRow& row : table.rows()) {
      Scope scope{.around = &around, .row = &row};
      if (const auto label = rule.cell.find("label"); label != rule.cell.end()) {
        if (const auto wrong = published_.erratum(row, label->second)) {
          scope.label = label->second;
          scope.renamed = wrong->corrected;
        }
      }
      any = apply_inside(rule, scope) || any;
    }
    return any;
  }

  bool apply_inside(const Rule& rule, const Scope& around) {
    Scope scope{.around = &around, .values = {}};
    if (!holds(rule.where, around, around, &scope.values)) return false;
    if (rule.rules.empty()) {
      add_cell(rule, scope);
      return true;
    }
    bool any = false;
    for (const auto& child : rule.rules) any = apply(*child, scope) || any;
    const CsvRow* const row = scope.row_around();
    if (any || rule.one_of.empty() || row == nullptr) return any;
    if (row->table().has_column("claim_id") &&
        !published_.left_out(row->text("claim_id")).empty()) {
      return true;
    }
    throw Error(row->place(rule.one_of), "'" + row->text(rule.one_of) + "'",
                "one that " + file_ + " has a rule for");
  }

  const CsvTable& read(const std::string& file) {
    return remembered(tables_, file, [&] { return published_.read(file); });
  }

  // ---- Names

  std::string place(const Scope& scope, const std::string& column) const {
    const CsvRow* const row = scope.row_around();
    return row != nullptr && row->table().has_column(column) ? row->place(column) : file_;
  }

  /// What a name stands for, if anything. Names inside it are looked up from `asking` too.
  std::optional<std::string> find(const std::string& name, const Scope& asking) {
    for (const Scope* scope = &asking; scope != nullptr; scope = scope->around) {
      const auto value = scope->values.find(name);
      if (value != scope->values.end()) return value->second;
      if (scope->words != nullptr) {
        const auto word = scope->words->find(name);
        if (word != scope->words->end()) return expand(word->second, asking);
      }
      if (scope->row != nullptr && scope->row->table().has_column(name)) {
        return scope->label == name ? scope->renamed : scope->row->text(name);
      }
    }
    return {};
  }

  std::string text(const std::string& name, const Scope& scope) {
    if (auto found = find(name, scope)) return *std::move(found);
    const CsvRow* const row = scope.row_around();
    if (row != nullptr) return row->text(name);  // which says what columns there are
    throw Error(file_, "{" + name + "}", "a name of the rule or one around it");
  }

  /// "{name}" and "{name:filter}" replaced; "=FORMULA" by its value.
  std::string expand(const std::string& pattern, const Scope& scope) {
    if (pattern.starts_with('=')) return spell(evaluate(pattern.substr(1), scope));
    if (++depth_ > most_nested) throw Error(file_, "'" + pattern + "' in itself", "other names");
    std::string result = replaced(pattern, scope);
    --depth_;
    return result;
  }

  std::string replaced(const std::string& pattern, const Scope& scope) {
    std::string result;
    for (std::size_t at = 0;;) {
      const std::size_t open = pattern.find('{', at);
      result += pattern.substr(at, open - at);
      if (open == std::string::npos) return result;
      const std::size_t close = pattern.find('}', open);
      if (close == std::string::npos) throw Error(file_, "'" + pattern + "'", "a '}'");
      const std::string inner = pattern.substr(open + 1, close - open - 1);
      const std::size_t colon = inner.find(':');
      const std::string name = inner.substr(0, colon);
      result += colon == std::string::npos ? text(name, scope)
                                           : filtered(name, inner.substr(colon + 1), scope);
      at = close + 1;
    }
  }

  std::string filtered(const std::string& name, const std::string& filter, const Scope& scope) {
    const std::string value = text(name, scope);
    if (filter == "catalog") {
      const auto known = paper_.catalog_names.find(value);
      return known != paper_.catalog_names.end() ? known->second : catalog_spelling(value);
    }
    if (filter == "label") {
      const CsvRow* const row = scope.row_around();
      const std::string& printed = row->text(name);
      return printed == value ? printed : printed + " (read " + value + ")";
    }
    throw Error(file_, unknown_name("filter", filter, {"catalog", "label"}));
  }

  std::string spell(const FormulaValue& value) const {
    if (const std::string* const word = std::get_if<std::string>(&value)) return *word;
    return fmt::format("{}", number_of(value, file_));
  }

  /// Whether all conditions "COLUMN=VALUE;COLUMN~REGEX;COLUMN@FOLDER" hold; @ asks whether the
  /// catalog's folder has the name, and "!=", "!~" and "!@" negate. Parts of regular expressions
  /// become {1}, {2}, ... The columns are those of `scope`; names in the values are read in
  /// `asking`.
  bool holds(const std::string& conditions, const Scope& scope, const Scope& asking, Words* parts) {
    for (std::size_t begin = 0; begin < conditions.size();) {
      const std::size_t end = std::min(conditions.find(';', begin), conditions.size());
      const std::string condition = conditions.substr(begin, end - begin);
      begin = end + 1;
      const std::size_t sign = condition.find_first_of("=~@!");
      if (sign == std::string::npos) throw Error(file_, "'" + condition + "'", "NAME=VALUE");
      const bool negated = condition[sign] == '!';
      const std::size_t after = sign + (negated ? 2 : 1);
      const std::string name = condition.substr(0, sign);
      const std::string value =
          name.find('{') == std::string::npos ? text(name, scope) : expand(name, scope);
      const std::string wanted = expand(condition.substr(after), asking);
      bool met = false;
      switch (condition[after - 1]) {
        case '=': met = value == wanted; break;
        case '@': met = in_folder(wanted, value); break;
        case '~': met = fits(value, wanted, parts); break;
        default: throw Error(file_, "'" + condition + "'", "=, ~, @, !=, !~ or !@");
      }
      if (met == negated) return false;
    }
    return true;
  }

  bool in_folder(const std::string& folder, const std::string& name) const {
    const std::vector<std::string> names = catalog_.names(folder);
    return std::binary_search(names.begin(), names.end(), name);
  }

  bool fits(const std::string& value, const std::string& pattern, Words* parts) {
    const std::regex& regex = remembered(patterns_, pattern, [&] { return std::regex(pattern); });
    std::smatch match;
    if (!std::regex_match(value, match, regex)) return false;
    for (std::size_t i = 1; parts != nullptr && i < match.size(); ++i) {
      (*parts)[std::to_string(parts->size() + 1)] = match[i];
    }
    return true;
  }

  // ---- Formulas

  FormulaValue evaluate(const std::string& formula, const Scope& scope) {
    FormulaNames names;
    names.variable = [&](const std::string& name) { return number(name, scope); };
    names.quantity = [&](const std::string& name, const std::vector<FormulaValue>& arguments) {
      return quantity(name, arguments, scope);
    };
    return evaluate_formula(formula, place(scope, "") + ": '" + formula + "'", names);
  }

  /// "=FORMULA" if that is what the name stands for, else null.
  static const std::string* formula_of(const std::string& name, const Scope& asking) {
    for (const Scope* scope = &asking; scope != nullptr; scope = scope->around) {
      if (scope->values.contains(name)) return nullptr;
      if (scope->words != nullptr) {
        const auto word = scope->words->find(name);
        if (word != scope->words->end()) {
          return word->second.starts_with('=') ? &word->second : nullptr;
        }
      }
      if (scope->row != nullptr && scope->row->table().has_column(name)) return nullptr;
    }
    return nullptr;
  }

  std::optional<FormulaValue> number(const std::string& name, const Scope& scope) {
    static const std::map<std::string, Symbol> symbols{
        {"batch", symbol::batch}, {"prompt_len", symbol::prompt_len}, {"kv_len", symbol::kv_len}};
    if (const std::string* const formula = formula_of(name, scope)) {
      return evaluate(formula->substr(1), scope);
    }
    const std::optional<std::string> text = find(name, scope);
    if (!text) {
      const auto free = symbols.find(name);
      if (free == symbols.end()) return {};
      return Count(free->second);
    }
    const char* const end = text->data() + text->size();
    std::uint64_t whole = 0;
    if (std::from_chars(text->data(), end, whole).ptr == end && !text->empty()) return Count(whole);
    double decimal = 0;
    const auto [rest, error] = std::from_chars(text->data(), end, decimal);
    if (error == std::errc() && rest == end) return decimal;
    throw Error(place(scope, name), "'" + *text + "'", "a number");
  }

  FormulaValue quantity(const std::string& name, std::vector<FormulaValue> arguments,
                        const Scope& scope) {
    static const std::set<std::string, std::less<>> over_rows{"total", "mean",  "least",
                                                              "most",  "count", "first"};
    const std::string here = place(scope, "");
    if (over_rows.contains(name)) return of_rows(name, QuantityArguments(arguments, here), scope);
    for (FormulaValue& value : arguments) {
      if (auto* const word = std::get_if<std::string>(&value)) *word = expand(*word, scope);
    }
    const QuantityArguments a(arguments, here);
    if (name == "claim") return claim(a.word(0));
    if (name == "corrected") return corrected(a.word(0), scope);
    const auto found = quantities_.find(name);
    if (found != quantities_.end()) return found->second(a);
    std::vector<std::string> known(over_rows.begin(), over_rows.end());
    for (const auto& [quantity, unused] : quantities_) known.push_back(quantity);
    throw Error(here, unknown_name("quantity", name, known));
  }

  /// ("PAPER_..."): the value of a claim in the paper's text.
  double claim(const std::string& id) const {
    const std::string paper = id.starts_with("spec_") ? "specprefill" : id.substr(0, id.find('_'));
    return published_.claim(paper + "_prose.csv", id);
  }

  /// (column): the row's number, or what its erratum puts there.
  double corrected(const std::string& column, const Scope& scope) const {
    const CsvRow& row = *scope.row_around();
    const auto wrong = published_.erratum(row, column);
    return wrong ? std::stod(wrong->corrected) : row.number(column);
  }

  /// Calls `of(scope)` for each row of a file that meets the conditions.
  template <typename Of>
  void for_rows(const std::string& file, const std::string& conditions, const Scope& around,
                Of of) {
    const CsvTable& table = read(file);
    for (const CsvRow& row : table.rows()) {
      Scope scope{.around = &around, .row = &row};
      if (holds(conditions, scope, around, &scope.values)) of(scope);
    }
  }

  /// (file, conditions, formula) of each row that meets them.
  FormulaValue of_rows(const std::string& name, const QuantityArguments& a, const Scope& around) {
    const std::string file = expand(a.word(0), around);
    std::vector<FormulaValue> values;
    for_rows(file, a.word(1), around, [&](const Scope& row) {
      if (name == "first" && !values.empty()) return;
      values.push_back(name == "count" ? Count(1) : evaluate(a.word(2), row));
    });
    if (values.empty()) throw Error(read(file).name(), "no row where " + a.word(1), "one");
    if (name == "first") return values.front();
    const bool exact = std::all_of(values.begin(), values.end(), [](const FormulaValue& v) {
      return std::holds_alternative<Count>(v);
    });
    Count count;
    double sum = 0;
    double least = HUGE_VAL;
    double most = -HUGE_VAL;
    for (const FormulaValue& value : values) {
      if (exact) count += std::get<Count>(value);
      const double x = number_of(value, a.place());
      sum += x;
      least = std::min(least, x);
      most = std::max(most, x);
    }
    if (name == "least") return least;
    if (name == "most") return most;
    if (name == "mean") return sum / static_cast<double>(values.size());
    return exact ? FormulaValue(count) : FormulaValue(sum);
  }

  // ---- Cells

  void add_cell(const Rule& rule, const Scope& scope) {
    const auto said = [&](const char* key) {
      const auto found = rule.cell.find(key);
      return found == rule.cell.end() ? std::string() : expand(found->second, scope);
    };
    const auto formula = [&](const char* key) {
      const auto found = rule.cell.find(key);
      return evaluate(found == rule.cell.end() ? "1" : found->second, scope);
    };
    const CsvRow* const row = scope.row_around();
    if (row == nullptr) throw Error(file_, "a cell of no file's row", "a file around it");
    const std::string known = said("known");
    if (!known.empty()) {
      const auto wrong = published_.erratum(*row, known);
      if (wrong && wrong->corrected.empty()) return;
    }
    const std::string column = said("column");
    if (repeats(rule, *row, said("once"), column)) return;

    ReproducedRow result;
    if (rule.cell.contains("formula")) {
      const std::string printed = said("formula");
      result = compare_formula(*row, said("cell"), printed_formula(rule, *row, printed, scope),
                               {count_of(formula("ours"), row->place(printed)),
                                count_of(formula("per"), row->place(printed))},
                               sizes(rule, scope));
      if (rule.cell.contains("meaning")) result.published = row->text(printed);
    } else {
      const std::string verdict = said("verdict");
      result = published_.compare(*row, column, said("cell"),
                                  number_of(formula("ours"), row->place(column)),
                                  verdict == "measured" ? TableKind::Measured : TableKind::Exact);
      if (verdict == "bound") apply_bound(*row, column, result);
    }
    for (const std::string& other : {said("erratum"), said("label")}) {
      if (other.empty()) continue;
      if (const auto wrong = published_.erratum(*row, other)) {
        if (!result.erratum.empty()) result.erratum += "; ";
        result.erratum += wrong->id + ": " + wrong->reason;
        // The erratum moves the number to another row.
        if (other == said("label") && result.exact) result.corrected = result.agrees;
      }
    }
    const auto fitted = rule.cell.find("fitted");
    result.fitted = fitted != rule.cell.end() && holds(fitted->second, scope, scope, nullptr);
    if (rule.cell.contains("prompt_len")) result.prompt_len = row->whole(said("prompt_len"));
    rows_.push_back(std::move(result));
  }

  /// Some tables print a number for a row and have a record for each of its parts: only the first
  /// counts, and the others must say the same.
  bool repeats(const Rule& rule, const CsvRow& row, const std::string& key,
               const std::string& column) {
    if (key.empty()) return false;
    const auto [known, is_new] = once_[&rule].emplace(row.text(key), row.text(column));
    if (is_new) return false;
    if (known->second == row.text(column)) return true;
    throw Error(row.place(column), "'" + row.text(column) + "'",
                "'" + known->second + "' as in the first row of " + row.text(key));
  }

  Count printed_formula(const Rule& rule, const CsvRow& row, const std::string& column,
                        const Scope& scope) {
    const std::string place = row.place(column);
    const auto meaning = rule.cell.find("meaning");
    if (meaning != rule.cell.end())
      return count_of(evaluate(expand(meaning->second, scope), scope), place);
    FormulaNames names;
    names.variable = [&](const std::string& name) -> std::optional<FormulaValue> {
      const auto variable = rule.with.find(name);
      if (variable == rule.with.end() || name.starts_with("list ")) return {};
      return evaluate(variable->second, scope);
    };
    for (const auto& [name, list] : rule.with) {
      if (name.starts_with("list ")) names.list = {name.substr(5), values_of(list, scope)};
    }
    return count_of(evaluate_formula(row.text(column), place, names), place);
  }

  /// "FILE;CONDITION;...;COLUMN": the values of a list.
  std::vector<Count> values_of(const std::string& list, const Scope& around) {
    const std::size_t first = list.find(';');
    const std::size_t last = list.rfind(';');
    if (first == std::string::npos || last == first)
      throw Error(file_, "'" + list + "'", "FILE;CONDITION;COLUMN");
    std::vector<Count> values;
    for_rows(list.substr(0, first), list.substr(first + 1, last - first - 1), around,
             [&](const Scope& row) { values.emplace_back(row.row->whole(list.substr(last + 1))); });
    return values;
  }

  /// The batch, prompt and cache at which a formula is shown.
  SymbolValues sizes(const Rule& rule, const Scope& scope) {
    std::array<std::uint64_t, 3> free{1, 1, 1};
    for (std::size_t i = 0; i < std::min(free.size(), rule.at.size()); ++i) {
      free[i] = count_of(evaluate(rule.at[i], scope), file_).at({});
    }
    return Symbols().resolve(free);
  }

  /// "over" and "less than" make the printed number a bound.
  static void apply_bound(const CsvRow& row, const std::string& column, ReproducedRow& result) {
    const std::string& qualifier = row.text("qualifier");
    const double printed = row.number(column);
    const bool above = qualifier == "over";
    if (!above && qualifier != "less than") {
      throw Error(row.place("qualifier"), "'" + qualifier + "'", "over or less than");
    }
    result.agrees = above ? result.ours > printed : result.ours < printed;
    result.corrected = false;
  }

  const Catalog& catalog_;
  const Published published_;
  const Paper paper_;
  const std::string file_;
  const Quantities quantities_;
  std::map<std::string, CsvTable> tables_;
  std::map<std::string, std::regex> patterns_;
  std::map<const Rule*, Words> once_;
  static constexpr int most_nested = 50;
  int depth_ = 0;
  std::vector<ReproducedRow> rows_;
};

}  // namespace

std::vector<ReproducedRow> evaluate_table(const Rule& table, const Paper& paper,
                                          const Catalog& catalog, const std::string& engine) {
  return Evaluation(catalog, paper, engine).rows(table);
}

}  // namespace kvcast::reports
