#include <array>
#include <utility>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "reports/reproduce/formula.h"
#include "reports/reproduce/reproduce_slim.h"

namespace kvcast::reports {
namespace {

/// A model at its full context, the number of cached tokens n being the symbol kv_len.
struct FormulaModel {
  Architecture architecture;
  SlimShape shape;
  std::uint64_t context = 0;

  FormulaModel(const Catalog& catalog, const std::string& name)
      : architecture(load_model(catalog, name)),
        shape(slim_shape(architecture)),
        context(architecture.max_position_embeddings) {}

  /// n and the paper's names for the sizes; square projections.
  FormulaVariables variables() const {
    return {{"n", symbol::kv_len},
            {"d", shape.hidden_size},
            {"h", shape.num_attention_heads},
            {"d_k", shape.head_dim}};
  }
  SymbolValues values() const { return Symbols().resolve({1, 1, context}); }
  std::string at() const {
    return architecture.name + ", d = " + std::to_string(shape.hidden_size) +
           ", h = " + std::to_string(shape.num_attention_heads) +
           ", n = " + std::to_string(context);
  }
  Count per_head(const Count& ops) const {
    return ops.scaled(1, static_cast<std::int64_t>(shape.num_attention_heads));
  }
};

/// Table 2 and Appendix B are evaluated for two models of Table 1, the one that section 1 works
/// out and one with another number of heads; agreement is for every n.
constexpr std::array<const char*, 2> formula_models{"phi-3-mini-128k", "gpt2-xl"};

AttentionStep step_of(const CsvRow& row, std::string_view column, const FormulaModel& model) {
  const std::string& variant = row.text(column);
  const Count n = symbol::kv_len;
  if (variant == "vanilla") return vanilla_step(model.shape, n);
  if (variant == "unoptimized") return unoptimized_step(model.shape, n);
  if (variant == "optimized") return optimized_step(model.shape, n);
  throw Error(row.place(column), "'" + variant + "'", "vanilla, unoptimized or optimized");
}

CountRatio table2_count(const CsvRow& row, const AttentionStep& step) {
  const bool projection = row.text("part") == "projection";
  if (!projection && row.text("part") != "mha") {
    throw Error(row.place("part"), "'" + row.text("part") + "'", "projection or mha");
  }
  const Count ops = step.ops(projection ? projection_labels() : attention_labels());
  const Count reads = projection ? step.weights(projection_labels()) : step.cache();
  const std::string& quantity = row.text("quantity");
  if (quantity == "ops") return {ops};
  if (quantity == "reads") return {reads};
  if (quantity == "intensity") return {ops, reads};
  throw Error(row.place("quantity"), "'" + quantity + "'", "ops, reads or intensity");
}

/// Appendix B's first table names three products, its second one the products of each variant.
Count appendix_b_count(const CsvRow& row, const FormulaModel& model) {
  const std::string& term = row.text("term");
  if (row.text("variant_or_group") == "per_head_term") {
    const Count n = symbol::kv_len;
    if (term == "softmax_argument_qk") {
      return model.per_head(vanilla_step(model.shape, n).ops({"scores"}));
    }
    if (term == "weighted_sum_of_v") {
      return model.per_head(vanilla_step(model.shape, n).ops({"weighted_sum"}));
    }
    if (term == "weighted_sum_of_k") {
      return model.per_head(optimized_step(model.shape, n).ops({"weighted_sum"}));
    }
  } else {
    const AttentionStep step = step_of(row, "variant_or_group", model);
    if (term == "softmax_argument_per_head") return model.per_head(step.ops({"scores"}));
    if (term == "weighted_sum_per_head") return model.per_head(step.ops({"weighted_sum"}));
    if (term == "total_ops") return step.ops(attention_labels());
  }
  throw Error(row.place("term"), "'" + term + "'", "a product of Appendix B");
}

/// Multiplications and additions of an [m, n] by [n, p] product, one by one.
std::uint64_t counted_product(std::uint64_t m, std::uint64_t n, std::uint64_t p) {
  std::uint64_t ops = 0;
  for (std::uint64_t element = 0; element < m * p; ++element) {
    for (std::uint64_t k = 0; k < n; ++k) ops += k == 0 ? 1 : 2;
  }
  return ops;
}

/// What a printed equation is held against.
struct Equation {
  std::string at;
  FormulaVariables variables;
  CountRatio ours;
  SymbolValues values;
};

Equation grouped_head_equation(const Catalog& catalog, bool factor) {
  const Architecture a = load_model(catalog, "gemma2-9b");  // Appendix G's example
  const Heads& heads = a.decoder.layers.front().heads;
  const Count width =
      Count(count_cache(a).per_token).scaled(1, static_cast<std::int64_t>(a.num_hidden_layers()));
  const FormulaVariables variables{{"h_kv", heads.num_key_value_heads},
                                   {"d_k", heads.head_dim},
                                   {"d_v", heads.head_dim},
                                   {"d_cache", 2 * heads.num_key_value_heads * heads.head_dim},
                                   {"d_model", a.hidden_size}};
  const CountRatio ours = factor ? CountRatio{width, a.hidden_size} : CountRatio{width};
  return {a.name, variables, ours, Symbols().resolve({1, 1, 1})};
}

/// Section 3 needs a model without RoPE whose projections are not square.
Equation x_cache_equation(const Catalog& catalog, bool naive) {
  const FormulaModel model(catalog, "t5-11b");
  constexpr std::uint64_t context = 512;  // T5's nominal context, as in Table 1
  const Count n = symbol::kv_len;
  const Count d = model.shape.hidden_size;
  const Count e = model.shape.width();
  const Count ours =
      naive ? product_ops(n, d, e) : x_cache_step(model.shape, n).ops({"query", "key"});
  return {model.architecture.name + ", n = " + std::to_string(context),
          {{"n", n}, {"d", d}, {"e", e}},
          {ours},
          Symbols().resolve({1, 1, context})};
}

Equation e_cache_equation(const Catalog& catalog) {
  const Architecture a = load_model(catalog, whisper_sizes().back().model);
  const Count p = symbol::kv_len;
  return {a.name + ", p = " + std::to_string(a.max_source_positions),
          {{"p", p}, {"d", a.hidden_size}},
          {product_ops(p, a.hidden_size, slim_shape(a).width())},
          Symbols().resolve({1, 1, a.max_source_positions})};
}

/// Appendix B: one head's scores over the context, [1, d_k] by [d_k, n].
Equation exact_product_equation(const Catalog& catalog) {
  const FormulaModel model(catalog, "gpt2-xl");
  const std::uint64_t inner = model.shape.head_dim;
  return {"[1, " + std::to_string(inner) + "] by [" + std::to_string(inner) + ", " +
              std::to_string(model.context) + "], counted one by one",
          {{"m", 1}, {"n", inner}, {"p", model.context}},
          {counted_product(1, inner, model.context)},
          model.values()};
}

Equation equation(const CsvRow& row, const Catalog& catalog) {
  const std::string& id = row.text("equation_id");
  if (id == "x_cache_naive_k_recompute_ops") return x_cache_equation(catalog, true);
  if (id == "x_cache_query_trick_ops") return x_cache_equation(catalog, false);
  if (id == "e_cache_naive_k_recompute_ops") return e_cache_equation(catalog);
  if (id == "d_cache") return grouped_head_equation(catalog, false);
  if (id == "compression_factor") return grouped_head_equation(catalog, true);
  if (id == "matmul_ops_exact") return exact_product_equation(catalog);

  const FormulaModel model(catalog, formula_models.front());
  const Count n = symbol::kv_len;
  Equation e{model.at(), model.variables(), {}, model.values()};
  if (id == "kv_cache_size") {
    e.variables.emplace("layers", model.architecture.num_hidden_layers());
    e.variables.emplace("context_tokens", n);
    e.ours.over = count_cache(model.architecture).per_token * n;
  } else if (id == "option1_ops_per_head") {
    e.ours.over = model.per_head(unoptimized_step(model.shape, n).ops({"value", "weighted_sum"}));
  } else if (id == "option2_ops_per_head") {
    e.ours.over = model.per_head(optimized_step(model.shape, n).ops({"value", "weighted_sum"}));
  } else {
    throw Error(row.place("equation_id"), "'" + id + "'", "an equation of the Slim paper");
  }
  return e;
}

}  // namespace

std::vector<ReproducedRow> slim_table2(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_table2_complexity_formulas.csv");
  std::vector<ReproducedRow> rows;
  for (const char* name : formula_models) {
    const FormulaModel model(catalog, name);
    for (const CsvRow& row : table.rows()) {
      const std::string cell = row.text("variant") + ", " + row.text("part") + ": " +
                               row.text("quantity") + " = " + row.text("expression_python") +
                               " at " + model.at();
      rows.push_back(
          compare_formula(row, cell, evaluate_formula(row, "expression_python", model.variables()),
                          table2_count(row, step_of(row, "variant", model)), model.values()));
    }
  }
  return rows;
}

std::vector<ReproducedRow> slim_appendix_b(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_appendix_b_mha_ops.csv");
  std::vector<ReproducedRow> rows;
  for (const char* name : formula_models) {
    const FormulaModel model(catalog, name);
    for (const CsvRow& row : table.rows()) {
      const std::string cell = row.text("variant_or_group") + ": " + row.text("term") + " = " +
                               row.text("ops_expression_python") + " at " + model.at();
      rows.push_back(compare_formula(
          row, cell, evaluate_formula(row, "ops_expression_python", model.variables()),
          {appendix_b_count(row, model)}, model.values()));
    }
  }
  return rows;
}

std::vector<ReproducedRow> slim_equations(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("slim_equations.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const Equation e = equation(row, catalog);
    const std::string cell =
        row.text("equation_id") + " = " + row.text("expression_python") + " at " + e.at;
    rows.push_back(compare_formula(
        row, cell, evaluate_formula(row, "expression_python", e.variables), e.ours, e.values));
  }
  return rows;
}

}  // namespace kvcast::reports
