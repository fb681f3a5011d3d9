#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>

#include "model/error.h"
#include "model/recording.h"
#include "model/work.h"
#include "reports/formula.h"
#include "reports/reproduce_kvr.h"
#include "search/partition_search.h"

namespace kvcast::reports {
namespace {

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
    for (const Node& node : recording_.prefill.nodes()) {
      if (node.layer != 0 || node.label != "scores") continue;
      const auto products = static_cast<std::int64_t>(2 * heads.head_dim);
      scores_ =
          work(recording_.prefill, node)
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

/// Equations 2 and 4 for even parts of n tokens, whatever n; and how long the search of Appendix D
/// takes.
std::vector<ReproducedRow> equations(const Catalog& catalog) {
  const Published published(catalog);
  const CsvTable table = published.read("kvr_equations.csv");
  const Count n = symbol::prompt_len;
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("equation_id");
    if (id != "eq2_ttft_star" && id != "eq4_net_tsp") continue;
    for (const std::uint64_t p : {2u, 4u, 8u}) {
      const Count context = n * p;
      const FormulaVariables variables{{"p", p}, {"C", context}, {"TTFT1", context * context}};
      Count scores;
      for (std::uint64_t i = 1; i <= p; ++i) scores += n * (n * i);
      const Count received = n * (p * (p - 1));
      const CountRatio ours =
          id == "eq2_ttft_star" ? CountRatio{scores, p} : CountRatio{received, 1};
      const Count formula = evaluate_formula(row, "expression_python", variables);
      rows.push_back(compare_formula(row, id + " at p = " + std::to_string(p) + ", parts of 1024",
                                     formula, ours, {1, 1024, 1024}));
    }
  }
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
          {"kvr-equations", "kvr", "KV-Runahead, Eqs. 2 to 5 and the cost of its search",
           TableKind::Exact, equations}};
}

}  // namespace kvcast::reports
