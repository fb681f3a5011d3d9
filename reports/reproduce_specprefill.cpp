#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <set>

#include "model/error.h"
#include "model/recording.h"
#include "model/work.h"
#include "reports/reproduce.h"

namespace kvcast::reports {
namespace {

/// Evaluates a formula of an `expression_python` column over polynomials: + - * / **, parentheses,
/// whole numbers and the variables given. The result is exact, for all batches and lengths at once.
class Formula {
 public:
  Formula(const CsvRow& row, const std::map<std::string, Count>& variables)
      : text_(row.text("expression_python")),
        place_(row.place("expression_python")),
        variables_(variables) {}

  Count evaluate() {
    Count result = sum();
    if (skip_blanks() != '\0') fail("an operator or the end");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    const std::string rest = text_.substr(next_);
    throw Error(place_, rest.empty() ? "the end of '" + text_ + "'" : "'" + rest + "'", expected);
  }

  char skip_blanks() {
    while (next_ < text_.size() && text_[next_] == ' ') ++next_;
    return next_ < text_.size() ? text_[next_] : '\0';
  }

  bool take(std::string_view token) {
    skip_blanks();
    if (text_.compare(next_, token.size(), token) != 0) return false;
    next_ += token.size();
    return true;
  }

  Count sum() {
    Count value = product();
    for (;;) {
      if (take("+")) {
        value += product();
      } else if (take("-")) {
        value -= product();
      } else {
        return value;
      }
    }
  }

  Count product() {
    Count value = power();
    for (;;) {
      if (take("*")) {
        value = value * power();
      } else if (take("/")) {
        value = value.scaled(1, static_cast<std::int64_t>(positive_constant(power(), "divisor")));
      } else {
        return value;
      }
    }
  }

  Count power() {
    const Count base = atom();
    if (!take("**")) return base;
    Count value = 1;
    for (std::uint64_t n = positive_constant(power(), "exponent"); n > 0; --n) value = value * base;
    return value;
  }

  std::uint64_t positive_constant(const Count& count, const std::string& what) const {
    const std::uint64_t limit = 1 << 20;
    const bool whole = count.is_constant() && count.denominator() == 1;
    const std::uint64_t value = whole ? count.at({}) : 0;
    if (value == 0 || value > limit)
      throw Error(place_, "another " + what, "a whole number above 0");
    return value;
  }

  Count atom() {
    const char c = skip_blanks();
    if (take("(")) {
      Count value = sum();
      if (!take(")")) fail("')'");
      return value;
    }
    const std::size_t begin = next_;
    while (next_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[next_]))) ++next_;
    const std::string word = text_.substr(begin, next_ - begin);
    if (std::isdigit(static_cast<unsigned char>(c))) {
      std::uint64_t number = 0;
      const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
      if (error == std::errc() && rest == word.data() + word.size()) return number;
    }
    const auto variable = variables_.find(word);
    if (variable != variables_.end()) return variable->second;
    next_ = begin;
    fail("a number, a variable or '('");
  }

  const std::string text_;
  const std::string place_;
  const std::map<std::string, Count>& variables_;
  std::size_t next_ = 0;
};

std::map<std::string, Count> formula_variables(const Architecture& a) {
  const LayerShape& layer = a.decoder.layers.front();
  return {{"L", a.num_hidden_layers()},
          {"D", a.hidden_size},
          {"I", layer.intermediate_size},
          {"H", layer.heads.num_attention_heads},
          {"Hkv", layer.heads.num_key_value_heads},
          {"V", a.vocab_size},
          {"S", symbol::prompt_len},
          {"B", symbol::batch}};
}

using Labels = std::set<std::string, std::less<>>;

/// Table 5's modules, and the labels that their products have in a recording.
Labels labels_of(std::string_view module, const std::string& place) {
  if (module == "mlp_per_layer") return {"gate", "up", "down"};
  if (module == "qkvo_projections_per_layer") return {"query", "key", "value", "attention_output"};
  if (module == "self_attention_per_layer") return {"scores", "values"};
  if (module == "lm_head") return {"head"};
  if (module == "total") {
    return {"gate",   "up",     "down", "query", "key", "value", "attention_output",
            "scores", "values", "head"};
  }
  throw Error(place, "'" + std::string(module) + "'", "a module of Table 5");
}

/// The table counts the multiply-adds of products, attention over all pairs as eager kernels do,
/// and the head at every position; it leaves out norms, rotations, softmax and the embedding.
Recording record_as_counted(const Architecture& a) {
  Lowering lowering;
  lowering.attention = lowering.elementwise = Kernels::Eager;
  return record(a, {}, lowering, {.logits = Logits::All});
}

Count multiply_adds(const Graph& graph, const Labels& labels) {
  Count flops;
  for (const Node& node : graph.nodes()) {
    if (labels.contains(node.label)) flops += work(graph, node).flops;
  }
  return flops.scaled(1, 2);
}

/// Speculator and base models of Table 6, as catalog names, each once.
std::vector<std::string> models_of_table6(const Published& published) {
  const CsvTable table = published.read("specprefill_table6_relative_flops.csv");
  std::vector<std::string> models;
  for (const CsvRow& row : table.rows()) {
    if (models.empty()) models.push_back(catalog_spelling(row.text("spec_model")));
    models.push_back(catalog_spelling(row.text("base_model")));
  }
  return models;
}

std::vector<ReproducedRow> table5(const Catalog& catalog) {
  constexpr std::array<std::uint64_t, 2> lengths{
      4096, 32768};  // from the shortest to the longest of the paper
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_table5_flops_formulas.csv");
  std::vector<ReproducedRow> rows;
  for (const std::string& model : models_of_table6(published)) {
    const Architecture a = load_model(catalog, model);
    const Recording recording = record_as_counted(a);
    const std::map<std::string, Count> variables = formula_variables(a);
    for (const CsvRow& row : table.rows()) {
      const std::string& module = row.text("module");
      const Count formula = Formula(row, variables).evaluate();
      Count ours = multiply_adds(recording.prefill, labels_of(module, row.place("module")));
      if (module.ends_with("_per_layer")) {
        ours = ours.scaled(1, static_cast<std::int64_t>(a.num_hidden_layers()));
      }
      for (const std::uint64_t length : lengths) {
        const SymbolValues sizes = recording.symbols.resolve({1, length, length});
        ReproducedRow result;
        result.source = row.text("source");
        result.cell = model + ": " + module + " = " + row.text("expression_python") +
                      " at B = 1, S = " + std::to_string(length);
        const std::uint64_t published_value = formula.at(sizes);
        result.published = std::to_string(published_value);
        result.ours = static_cast<double>(ours.at(sizes));
        result.relative_error = result.ours / static_cast<double>(published_value) - 1;
        result.exact = true;
        result.agrees = ours == formula;  // as polynomials, so at every other B and S too
        rows.push_back(std::move(result));
      }
    }
  }
  return rows;
}

/// Both readings of E20: the formula of Table 5 as printed, and without the K and V projections,
/// which is what yields the printed percentages.
std::vector<ReproducedRow> table6(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_table6_relative_flops.csv");
  const Labels all = labels_of("total", table.name());
  Labels without_kv = all;
  without_kv.erase("key");
  without_kv.erase("value");

  std::map<std::string, Recording> recordings;
  for (const std::string& model : models_of_table6(published)) {
    recordings.emplace(model, record_as_counted(load_model(catalog, model)));
  }
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::uint64_t length = row.whole("sequence_tokens");
    const auto total = [&](std::string_view column, const Labels& labels) {
      const Recording& r = recordings.at(catalog_spelling(row.text(column)));
      const SymbolValues sizes = r.symbols.resolve({row.whole("batch_size"), length, length});
      return static_cast<double>(multiply_adds(r.prefill, labels).at(sizes));
    };
    const auto add = [&](const Labels& labels, const std::string& reading) {
      const double percent = 100 * total("spec_model", labels) / total("base_model", labels);
      rows.push_back(published.compare(
          row, "flops_ratio_spec_over_base_pct",
          row.text("spec_model") + " / " + row.text("base_model") + ", percent (" + reading + ")",
          percent));
    };
    add(all, "Table 5 as printed");
    add(without_kv, "without K and V projections");
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> specprefill_tables() {
  return {{"specprefill-table5", "specprefill",
           "SpecPrefill, Table 5: multiply-adds of a prefill, formula by formula", TableKind::Exact,
           table5},
          {"specprefill-table6", "specprefill",
           "SpecPrefill, Table 6: the speculator's share of the base model's prefill",
           TableKind::Exact, table6}};
}

}  // namespace kvcast::reports
