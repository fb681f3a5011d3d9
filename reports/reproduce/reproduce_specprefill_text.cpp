#include <string>

#include "model/base/error.h"
#include "reports/reproduce/reproduce_specprefill.h"

namespace kvcast::reports {
namespace {

/// The scores of one row of a table, up to its average.
struct Scores {
  double sum = 0;
  double count = 0;

  void add(double score) {
    sum += score;
    ++count;
  }
  double mean() const { return sum / count; }
};

/// A record holds one score; the average follows those that it is of.
void add_averages(const Published& published, std::string_view file, std::string_view average,
                  std::string_view not_in_it, std::string_view label,
                  std::vector<ReproducedRow>& rows) {
  const CsvTable table = published.read(file);
  Scores scores;
  for (const CsvRow& row : table.rows()) {
    const std::string& group = row.text("task_group");
    if (group == average) {
      const std::string cell = row.text("method") + ", " + row.text(label) + ": mean of its groups";
      rows.push_back(published.compare(row, "score", cell, scores.mean()));
      scores = {};
    } else if (group != not_in_it) {
      scores.add(row.number("score"));
    }
  }
}

}  // namespace

/// Nothing is measured here: means of printed scores.
std::vector<ReproducedRow> specprefill_averages(const Catalog& catalog) {
  const Published published(catalog);
  std::vector<ReproducedRow> rows;
  add_averages(published, "specprefill_table1_longbench_70b.csv", "avg_as_printed", "",
               "rate_label", rows);
  add_averages(published, "specprefill_table2_ruler_70b.csv",
               "average_without_aggregation_as_printed", "aggregation_cwe_fwe", "context_label",
               rows);
  return rows;
}

std::vector<ReproducedRow> specprefill_prose(const Catalog& catalog) {
  const Published published(catalog);
  const auto said = [&](const char* id) { return published.claim("specprefill_prose.csv", id); };
  const auto whole = [&](const char* id) { return static_cast<std::uint64_t>(said(id)); };
  const auto average = [&](const std::string& method, const std::string& rate) {
    const CsvTable table = published.read("specprefill_table1_longbench_70b.csv");
    for (const CsvRow& row : table.rows()) {
      if (row.text("method") == method && row.text("rate_label") == rate &&
          row.text("task_group") == "avg_as_printed") {
        return row.number("score");
      }
    }
    throw Error(table.name(), "no average of " + method + " at " + rate, "one");
  };
  SpeculatorShares shares(catalog);
  const CsvTable table = published.read("specprefill_prose.csv");
  std::vector<ReproducedRow> rows;
  for (const CsvRow& row : table.rows()) {
    const std::string& id = row.text("claim_id");
    const auto add = [&](const std::string& cell, double ours) {
      rows.push_back(published.compare(row, "value", cell, ours));
    };
    if (id == "spec_p02") {  // Appendix E: the speculator, then the kept share of the base
      for (const SpeculatorReading& reading : speculator_readings()) {
        const double share = shares.of("Llama-3.1-8B", "Llama-3.1-405B", whole("spec_p13"),
                                       whole("spec_p12"), reading);
        add("speed-up of Llama-3.1-405B at a tenth of the prompt (" + std::string(reading.name) +
                ")",
            1 / (share + said("spec_p14")));
      }
    } else if (id == "spec_p06") {
      add("reduction of TTFT by the measured speed-up, percent", 100 * (1 - 1 / said("spec_p01")));
    } else if (id == "spec_p11") {
      add("LongBench at a tenth of the prompt over MInference, percent",
          100 * average("SPECPREFILL", "10%") / average("MInference", "N/A (Section 4.7.2)"));
    }
  }
  return rows;
}

}  // namespace kvcast::reports
