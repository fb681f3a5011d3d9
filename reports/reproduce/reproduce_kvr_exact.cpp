#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/graph/work.h"
#include "model/methods/method.h"
#include "model/record/rank_recording.h"
#include "model/record/recording.h"
#include "reports/reproduce/formula.h"
#include "reports/reproduce/reproduce_kvr.h"
#include "search/partition_search.h"

namespace kvcast::reports {
namespace {

/// Tokens of each process where equations are shown; they hold for any number.
constexpr std::uint64_t part_tokens = 1024;

/// Scores of one head that a process computes, from the products that a recorded chunk has: its
/// tokens times all its keys, masked ones included, as the paper counts.
class ScoreCounter {
 public:
  explicit ScoreCounter(const Catalog& catalog) {
    Lowering lowering;
    lowering.attention = lowering.elementwise = Kernels::Eager;
    const Architecture a = load_model(catalog, "llama-7b");
    recording_ = record(a, {}, lowering, {.chunked = true});
    const Heads& heads = a.decoder.layers.front().heads;
    for (const Node& node : recording_.prefill().nodes()) {
      if (node.layer != 0 || node.label != "scores") continue;
      const auto products = static_cast<std::int64_t>(2 * heads.head_dim);
      scores_ =
          work(recording_.prefill(), node)
              .flops.scaled(1, products * static_cast<std::int64_t>(heads.num_attention_heads));
    }
  }
  double at(std::uint64_t tokens, std::uint64_t keys) const {
    return value_at(scores_, recording_.symbols.resolve({1, tokens, keys}));
  }

 private:
  Recording recording_;
  Count scores_;
};

/// The partitions of Figures 4 to 6, by example.
std::map<std::string, search::Partition> example_partitions(const Catalog& catalog) {
  std::map<std::string, search::Partition> partitions;
  const CsvTable table = Published(catalog).read("kvr_worked_partition_examples.csv");
  for (const CsvRow& row : table.rows()) {
    partitions[row.text("example_id")].push_back(row.whole("partition_tokens"));
  }
  return partitions;
}

/// Figures 4 and 5, and Section 4.1, which counts the same: dot products of QK^T of each process,
/// rows of K and of V sent in all.
std::vector<ReproducedRow> worked_examples(const Catalog& catalog) {
  const Published published(catalog);
  const ScoreCounter scores(catalog);
  const CsvTable table = published.read("kvr_worked_partition_examples.csv");
  std::map<std::string, std::vector<CsvRow>> examples;
  for (const CsvRow& row : table.rows()) {
    if (!row.text("qkt_dot_products").empty()) examples[row.text("example_id")].push_back(row);
  }
  std::vector<ReproducedRow> rows;
  for (const auto& [id, processes] : examples) {
    const bool tsp = id.find("tsp") != std::string::npos;
    double sent = 0;
    for (const CsvRow& row : processes) {
      const std::uint64_t end = row.whole("end_token");
      const std::uint64_t context = row.whole("context_tokens");
      const std::uint64_t tokens = row.whole("partition_tokens");
      const double ours = scores.at(tokens, tsp ? context : end);
      rows.push_back(published.compare(
          row, "qkt_dot_products", id + ", process " + row.text("rank") + ": dot products", ours));
      // TSP: to each of the others its own part; a chain: all up to its end, the last one nothing.
      const bool last = end == context;
      if (tsp) sent += static_cast<double>(tokens * (processes.size() - 1));
      if (!tsp && !last) sent += static_cast<double>(end);
    }
    rows.push_back(published.compare(processes.front(), "total_kv_rows_exchanged",
                                     id + ": rows of K and V exchanged", 2 * sent));
  }
  return rows;
}

std::vector<ReproducedRow> table4(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_table4_partition_example.csv");
  const auto words = [](const CsvRow& row) {
    std::istringstream text(row.text("partition_text"));
    std::string word;
    std::uint64_t count = 0;
    while (text >> word) ++count;
    return count;
  };
  std::uint64_t prompt = 0;
  std::size_t processes = 0;
  for (const CsvRow& row : table.rows()) {
    if (row.text("method") != "TSP") continue;
    prompt += words(row);
    ++processes;
  }
  const search::Partition even = even_partition(prompt, processes);
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const bool tsp = row.text("method") == "TSP";
    const std::uint64_t ours = tsp ? even.at(row.whole("rank")) : words(row);
    rows.push_back(published.compare(row, "partition_words",
                                     row.text("method") + ", process " + row.text("rank") +
                                         (tsp ? ": words of even parts" : ": words of its text"),
                                     static_cast<double>(ours)));
  }
  return rows;
}

/// Rows of keys that the ranks of a placement send in a layer, as its recordings have them.
Count rows_sent(const Catalog& catalog, const std::string& method,
                const std::vector<std::uint64_t>& partition) {
  const Architecture a = load_model(catalog, "llama-7b");
  std::uint64_t rows = 0;
  RankShare share{partition, 0};
  for (; share.rank < share.ranks(); ++share.rank) {
    const Recording r = record_rank(a, parse_methods(method), {}, share);
    const SymbolValues values = r.symbols.resolve({1, share.tokens(), share.end()});
    for (const Node& node : r.prefill().nodes()) {
      if (node.layer != 0 || node.label != "send_keys") continue;
      rows += r.prefill().tensor(node.output).shape[1].at(values);
    }
  }
  return rows;
}

/// Equations 1 and 4 to 7 from what is recorded: products of each process, rows that each sends.
/// Equation 2 for even parts of n tokens, whatever n.
void add_equation(const Catalog& catalog, const ScoreCounter& scores, const CsvRow& row,
                  std::vector<ReproducedRow>& rows) {
  const std::string& id = row.text("equation_id");
  const SymbolValues values{1, part_tokens, part_tokens};
  const auto add = [&](const std::string& cell, const Count& formula, const CountRatio& ours) {
    rows.push_back(compare_formula(row, id + cell, formula, ours, values));
  };
  if (id == "eq1_ttft_lower_bound") {
    for (const auto& [example, partition] : example_partitions(catalog)) {
      std::uint64_t context = 0;
      double products = 0;
      FormulaList parts{"c_i", {}};
      for (const std::uint64_t tokens : partition) {
        context += tokens;
        products += scores.at(tokens, context);
        parts.values.emplace_back(tokens);
      }
      const std::uint64_t p = partition.size();
      const FormulaVariables variables{{"alpha", 1}, {"p", p}, {"C", context}};
      add(", alpha 1, " + example, evaluate_formula(row, "expression_python", variables, parts),
          {static_cast<std::uint64_t>(products), p});
    }
    return;
  }
  const bool gathers = id == "eq4_net_tsp" || id == "eq5_net_tsp";
  const bool chain = id == "eq6_net_kvr" || id == "eq7_net_kvr";
  if (!gathers && !chain && id != "eq2_ttft_star") return;
  const Count n = symbol::prompt_len;
  for (const std::uint64_t p : {2u, 4u, 8u}) {
    const std::string cell = fmt::format(" at p = {}, parts of {}", p, part_tokens);
    if (id == "eq2_ttft_star") {
      const Count context = n * p;
      Count products;
      for (std::uint64_t i = 1; i <= p; ++i) products += n * (n * i);
      add(cell,
          evaluate_formula(row, "expression_python",
                           {{"p", p}, {"C", context}, {"TTFT1", context * context}}),
          {products, p});
      continue;
    }
    const std::vector<std::uint64_t> even(p, part_tokens);
    const std::string method = fmt::format("{}:p={}", gathers ? "tsp" : "kvr", p);
    add(cell, evaluate_formula(row, "expression_python", {{"p", p}, {"C", part_tokens * p}}),
        {rows_sent(catalog, method, even)});
  }
}

/// Equations 1 to 7; and how long the search of Appendix D takes.
std::vector<ReproducedRow> equations(const Catalog& catalog) {
  const Published published(catalog);
  const ScoreCounter scores(catalog);
  const CsvTable table = published.read("kvr_equations.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) add_equation(catalog, scores, row, rows);
  const CsvTable prose = published.read("kvr_prose.csv");
  for (const CsvRow& row : prose.rows()) {
    if (row.text("claim_id") != "kvr_p34") continue;
    // 5 values for each of the 7 boundaries of 8 parts, log_4(16384) = 7 levels, 1 s a partition.
    const double hours = std::pow(5.0, 7) * 7 / 3600;
    rows.push_back(published.compare(
        row, "value", "Appendix D: hours to search 16k over 8 GPUs at 1 s a partition", hours));
  }
  return rows;
}

}  // namespace

std::vector<PublishedTable> kvr_exact_tables() {
  return {{"kvr-examples", "kvr", "KV-Runahead, Figures 4 and 5: dot products and traffic",
           TableKind::Exact, worked_examples},
          {"kvr-table4", "kvr", "KV-Runahead, Table 4: words of each process", TableKind::Exact,
           table4},
          {"kvr-equations", "kvr", "KV-Runahead, Eqs. 1 to 7 and the cost of its search",
           TableKind::Exact, equations}};
}

}  // namespace kvcast::reports
