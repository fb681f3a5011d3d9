#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "cli/frame/csv_output.h"
#include "measure/validation.h"
#include "model/base/error.h"
#include "model/io/files/csv_writer.h"
#include "reports/plot/output_check.h"
#include "reports/plot/validation_plots.h"
#include "reports/reproduce/reproduce.h"
#include "reports/reproduce/reproduced_plots.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using reports::PaperSummary;
using reports::PublishedGap;
using reports::PublishedTable;
using reports::ReproducedRow;
using reports::ReproductionSummary;
using reports::TableKind;

struct Options {
  std::vector<std::string> tables;
  std::string csv;
  std::string plot;
  bool json = false;
  bool summary = false;
  bool errata = false;
};

struct Result {
  const PublishedTable* table;
  std::vector<ReproducedRow> rows;
  ReproductionSummary summary;
};

const char* verdict(const ReproducedRow& row) {
  if (row.fitted) return "fitted";
  if (!row.exact) return "measured";
  if (row.corrected) return "erratum";
  return row.agrees ? "exact" : "DIFFERS";
}

std::vector<PaperSummary> paper_summaries(const std::vector<Result>& results,
                                          const std::vector<PublishedGap>& gaps = {}) {
  std::vector<const PublishedTable*> tables;
  std::vector<ReproductionSummary> summaries;
  for (const Result& result : results) {
    tables.push_back(result.table);
    summaries.push_back(result.summary);
  }
  return reports::summarize_papers(tables, summaries, gaps);
}

ordered_json result_json(const std::vector<Result>& results,
                         const std::vector<PublishedGap>& gaps) {
  ordered_json rows = ordered_json::array();
  ordered_json summaries = ordered_json::array();
  for (const Result& result : results) {
    for (const ReproducedRow& r : result.rows) {
      rows.push_back({{"table", result.table->name},
                      {"source", r.source},
                      {"cell", r.cell},
                      {"published", r.published},
                      {"ours", r.ours},
                      {"relative_error", r.relative_error},
                      {"verdict", verdict(r)},
                      {"erratum", r.erratum},
                      {"file", r.file}});
    }
    const ReproductionSummary& s = result.summary;
    summaries.push_back({{"table", s.table},
                         {"cells", s.cells},
                         {"exact", s.exact},
                         {"exact_agree", s.exact_agree},
                         {"corrected", s.corrected},
                         {"errata", s.errata},
                         {"fitted", s.fitted},
                         {"mape", s.mape},
                         {"worst", s.worst}});
  }
  ordered_json papers = ordered_json::array();
  for (const PaperSummary& p : paper_summaries(results)) {
    papers.push_back({{"paper", p.group},
                      {"title", p.title},
                      {"tables", p.tables},
                      {"exact", p.sums.exact},
                      {"exact_agree", p.sums.exact_agree},
                      {"corrected", p.sums.corrected},
                      {"measured", p.sums.measured()},
                      {"fitted", p.sums.fitted},
                      {"mape", p.sums.mape},
                      {"worst", p.sums.worst},
                      {"errata", p.sums.errata}});
  }
  ordered_json left_out = ordered_json::array();
  for (const PublishedGap& gap : gaps) {
    left_out.push_back({{"file", gap.file}, {"claim", gap.claim}, {"reason", gap.reason}});
  }
  return {{"rows", rows}, {"summary", summaries}, {"papers", papers}, {"left_out", left_out}};
}

/// "-" is standard output, as under sweep.
void write_csv(const std::string& path, const std::vector<Result>& results) {
  CsvWriter csv(csv_target(path), {"table", "source", "cell", "published", "ours", "relative_error",
                                   "verdict", "erratum", "file"});
  for (const Result& result : results) {
    for (const ReproducedRow& r : result.rows) {
      csv.cell(result.table->name).cell(r.source).cell(r.cell).cell(r.published).cell(r.ours);
      csv.cell(r.relative_error).cell(verdict(r)).cell(r.erratum).cell(r.file);
      csv.end_row();
    }
  }
  csv.commit();
}

std::string rows_text(const Result& result) {
  Table table({"cell", "published", "ours", "error", "verdict", "erratum"});
  for (const ReproducedRow& r : result.rows) {
    table.add({r.cell, r.published, fmt::format("{:.6g}", r.ours),
               fmt::format("{:+.1f} %", 100 * r.relative_error), verdict(r), r.erratum});
  }
  return result.table->title + "\n" + table.text() + "\n";
}

std::string summary_text(const std::vector<Result>& results) {
  Table table({"table", "cells", "exact", "agree", "corrected", "fitted", "errata", "mean |error|",
               "worst"});
  for (const Result& result : results) {
    const ReproductionSummary& s = result.summary;
    const bool measured = s.measured() > 0;
    table.add({s.table, std::to_string(s.cells), std::to_string(s.exact),
               std::to_string(s.exact_agree), std::to_string(s.corrected), std::to_string(s.fitted),
               std::to_string(s.errata), measured ? fmt::format("{:.1f} %", 100 * s.mape) : "",
               measured ? fmt::format("{:.1f} %", 100 * s.worst) : ""});
  }
  return table.text();
}

std::string papers_text(const std::vector<Result>& results, const std::vector<PublishedGap>& gaps) {
  Table table({"paper", "tables", "exact", "agree", "corrected", "fitted", "measured",
               "mean |error|", "worst", "errata", "left out"});
  for (const PaperSummary& p : paper_summaries(results, gaps)) {
    const bool measured = p.sums.measured() > 0;
    table.add({p.title, std::to_string(p.tables), std::to_string(p.sums.exact),
               std::to_string(p.sums.exact_agree), std::to_string(p.sums.corrected),
               std::to_string(p.sums.fitted), std::to_string(p.sums.measured()),
               measured ? fmt::format("{:.1f} %", 100 * p.sums.mape) : "",
               measured ? fmt::format("{:.1f} %", 100 * p.sums.worst) : "",
               std::to_string(p.sums.errata), std::to_string(p.gaps)});
  }
  return table.text();
}

/// One line for each way in which cells are wrong in print.
std::string errata_text(const std::vector<Result>& results) {
  struct Misprint {
    std::string erratum;
    const ReproducedRow* first;
    std::size_t cells;
  };
  std::vector<Misprint> misprints;
  for (const Result& result : results) {
    for (const ReproducedRow& r : result.rows) {
      if (r.erratum.empty()) continue;
      const auto known = std::find_if(misprints.begin(), misprints.end(),
                                      [&](const Misprint& m) { return m.erratum == r.erratum; });
      if (known == misprints.end()) {
        misprints.push_back({r.erratum, &r, 1});
      } else {
        ++known->cells;
      }
    }
  }
  Table table({"cells", "published", "ours", "the first cell, and what is wrong with it"});
  for (const Misprint& m : misprints) {
    table.add({std::to_string(m.cells), m.first->published, fmt::format("{:.6g}", m.first->ours),
               m.first->cell + "; " + m.erratum});
  }
  return table.text();
}

/// A table of TTFTs over its prompt lengths; anything else, and several tables, published numbers
/// and ours, and the errors of what was measured beside it.
void write_plots(const std::string& path, const std::vector<Result>& results) {
  const bool ttfts =
      results.size() == 1 && std::any_of(results[0].rows.begin(), results[0].rows.end(),
                                         [](const ReproducedRow& r) { return r.prompt_len > 0; });
  if (ttfts) {
    reports::write_plot(reports::reproduced_ttft_plot(*results[0].table, results[0].rows), path);
    return;
  }
  const std::vector<PaperSummary> papers = paper_summaries(results);
  const std::string title = results.size() == 1  ? results[0].table->title
                            : papers.size() == 1 ? papers[0].title
                                                 : fmt::format("{} papers", papers.size());
  std::vector<reports::ReproducedTable> tables;
  for (const Result& result : results) tables.push_back({result.table, result.rows});
  reports::write_plot(reports::published_scatter_plot(title, tables), path);
  const reports::Plot errors = reports::published_error_plot(title, tables);
  if (!errors.series.empty()) reports::write_plot(errors, reports::error_plot_file(path));
}

/// The points of a picture go neither over the rows nor over a published table.
void check_plot(const Options& o, const Catalog& catalog) {
  for (const fs::path& picture : {fs::path(o.plot), reports::error_plot_file(o.plot)}) {
    reports::check_plot_writable(picture);
    reports::check_plot_spares(picture, csv_target(o.csv), "--csv");
    for (const auto& entry : fs::directory_iterator(catalog.root() / "published")) {
      reports::check_plot_spares(picture, entry.path(), "a published table");
    }
  }
}

void run(const Options& o, const Globals& globals) {
  if (o.errata && (o.json || o.summary)) {
    throw Error("--errata: --json has each cell's erratum; expected it without --json, --summary");
  }
  check_rows_alone(o.csv, {{"--json", o.json}, {"--summary", o.summary}, {"--errata", o.errata}});
  const Catalog catalog = globals.catalog();
  if (!o.plot.empty()) check_plot(o, catalog);
  std::vector<Result> results;
  const std::vector<PublishedTable> all = reports::published_tables(catalog);
  const std::vector<PublishedGap> gaps = reports::Published(catalog).gaps();
  for (const PublishedTable* table : reports::select_tables(all, o.tables)) {
    std::vector<ReproducedRow> rows = table->rows(catalog);
    const ReproductionSummary summary = reports::summarize(*table, rows);
    results.push_back({table, std::move(rows), summary});
  }
  if (!o.plot.empty()) write_plots(o.plot, results);
  if (!o.csv.empty()) write_csv(o.csv, results);
  if (o.csv == "-") return;
  if (o.json) {
    print_json(result_json(results, gaps));
    return;
  }
  if (o.errata) {
    print_text(errata_text(results));
    return;
  }
  // Two thousand rows are no answer on a terminal: --csv and --json have them all.
  const bool whole = results.size() == all.size();
  std::string text;
  if (!o.summary && !whole) {
    for (const Result& result : results) text += rows_text(result);
  }
  text += summary_text(results);
  if (whole) text += "\n" + papers_text(results, gaps);
  print_text(text);
}

/// By paper, for the help; without a data folder, why there are none.
std::string tables_text(const Globals& globals) {
  std::string text = "Tables, by paper:";
  std::string group;
  try {
    for (const PublishedTable& t : reports::published_tables(globals.catalog())) {
      text += (t.group == group ? "" : "\n  " + t.group + ":") + (" " + t.name);
      group = t.group;
    }
  } catch (const Error& e) {
    text += std::string(" ") + e.what();
  }
  return text;
}

}  // namespace

void add_reproduce(Command app, const Globals& globals) {
  Command command =
      app.add_subcommand("reproduce",
                         "Published tables beside what kvcast computes.\n\nExamples:\n"
                         "  kvcast reproduce slim-table1\n"
                         "  kvcast reproduce all --csv reproduced.csv");
  command.footer([&globals] { return tables_text(globals); });
  const auto options = std::make_shared<Options>();
  command.add("TABLE", options->tables,
              "tables or papers; none, or all: every table, one line each");
  command.add("--json", options->json);
  command.add("--summary", options->summary, "one line a table");
  command.add("--errata", options->errata, "what is wrong in print, one line for each kind");
  command.add("--csv", options->csv);
  command.add("--plot", options->plot,
              "draw one table of TTFTs over the prompt length; other tables, and several: "
              "ours over the published numbers, and measured errors in FILE-errors");
  command.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
