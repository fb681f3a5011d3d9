#include "reports/reproduce/reproduce_specprefill.h"

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "model/base/error.h"
#include "model/graph/work.h"
#include "model/record/recording.h"
#include "reports/reproduce/formula.h"

namespace kvcast::reports {
namespace {

FormulaVariables formula_variables(const Architecture& a) {
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
    const FormulaVariables variables = formula_variables(a);
    for (const CsvRow& row : table.rows()) {
      const std::string& module = row.text("module");
      const Count formula = evaluate_formula(row, "expression_python", variables);
      Count ours = multiply_adds(recording.prefill(), labels_of(module, row.place("module")));
      if (module.ends_with("_per_layer")) {
        ours = ours.scaled(1, static_cast<std::int64_t>(a.num_hidden_layers()));
      }
      for (const std::uint64_t length : lengths) {
        const SymbolValues sizes = recording.symbols.resolve({1, length, length});
        const std::string cell = model + ": " + module + " = " + row.text("expression_python") +
                                 " at B = 1, S = " + std::to_string(length);
        rows.push_back(compare_formula(row, cell, formula, {ours}, sizes));
      }
    }
  }
  return rows;
}

/// The readings of E20: the formula of Table 5 as printed, and what yields the printed percentages:
/// without the K and V projections or, the same in these models, at 31 * 1024 tokens.
std::vector<ReproducedRow> table6(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_table6_relative_flops.csv");
  SpeculatorShares shares(catalog);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    for (const SpeculatorReading& reading : speculator_readings()) {
      const double percent =
          100 * shares.of(row.text("spec_model"), row.text("base_model"), row.whole("batch_size"),
                          row.whole("sequence_tokens"), reading);
      rows.push_back(published.compare(row, "flops_ratio_spec_over_base_pct",
                                       row.text("spec_model") + " / " + row.text("base_model") +
                                           ", percent (" + std::string(reading.name) + ")",
                                       percent));
    }
  }
  return rows;
}

}  // namespace

const std::vector<SpeculatorReading>& speculator_readings() {
  static const std::vector<SpeculatorReading> all{
      {"Table 5 as printed", true},
      {"without K and V projections", false},
      {"Table 5 as printed, at S = 31744", true, 31744}};
  return all;
}

double SpeculatorShares::total(const std::string& model, std::uint64_t batch, std::uint64_t tokens,
                               const SpeculatorReading& reading) {
  Labels labels = labels_of("total", std::string(reading.name));
  if (!reading.kv_projections) {
    labels.erase("key");
    labels.erase("value");
  }
  const std::string name = catalog_spelling(model);
  auto found = recordings_.find(name);
  if (found == recordings_.end()) {
    found = recordings_.emplace(name, record_as_counted(load_model(catalog_, name))).first;
  }
  const std::uint64_t length = reading.tokens > 0 ? reading.tokens : tokens;
  const SymbolValues sizes = found->second.symbols.resolve({batch, length, length});
  return static_cast<double>(multiply_adds(found->second.prefill(), labels).at(sizes));
}

double SpeculatorShares::of(const std::string& speculator, const std::string& base,
                            std::uint64_t batch, std::uint64_t tokens,
                            const SpeculatorReading& reading) {
  return total(speculator, batch, tokens, reading) / total(base, batch, tokens, reading);
}

double SpeculatorShares::kept(const std::string& model, std::uint64_t batch, std::uint64_t tokens,
                              double keep) {
  const SpeculatorReading& printed = speculator_readings().front();
  const auto few = static_cast<std::uint64_t>(std::ceil(keep * static_cast<double>(tokens)));
  return total(model, batch, few, printed) / total(model, batch, tokens, printed);
}

std::vector<PublishedTable> specprefill_tables() {
  return {{"specprefill-table5", "specprefill",
           "SpecPrefill, Table 5: multiply-adds of a prefill, formula by formula", TableKind::Exact,
           table5},
          {"specprefill-table6", "specprefill",
           "SpecPrefill, Table 6: the speculator's share of the base model's prefill",
           TableKind::Exact, table6},
          {"specprefill-averages", "specprefill",
           "SpecPrefill, Tables 1 and 2: averages of the printed scores", TableKind::Exact,
           specprefill_averages},
          {"specprefill-prose", "specprefill", "SpecPrefill, text: what is arithmetic",
           TableKind::Exact, specprefill_prose},
          {"specprefill-example", "specprefill",
           "SpecPrefill, Section 3.2.4: positions of kept and decoded tokens", TableKind::Exact,
           specprefill_positions},
          specprefill_flops_ratio_table(),
          specprefill_ttft_table()};
}

}  // namespace kvcast::reports
