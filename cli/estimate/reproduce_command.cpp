#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "model/base/error.h"
#include "reports/plot/validation_plots.h"
#include "reports/reproduce/reproduce.h"
#include "reports/reproduce/reproduced_plots.h"

namespace kvcast::cli {
namespace {

using reports::PaperSummary;
using reports::PublishedGap;
using reports::PublishedTable;
using reports::ReproducedRow;
using reports::ReproducedTable;

struct Options {
  std::vector<std::string> tables;
  std::string engine;
  RowsOutput output;
  std::string plot;
  bool summary = false;
  bool errata = false;
};

const char* verdict(const ReproducedRow& row) {
  if (row.fitted) return "fitted";
  if (!row.exact) return "measured";
  if (row.corrected) return "erratum";
  return row.agrees ? "exact" : "DIFFERS";
}

ordered_json row_json(const PublishedTable& table, const ReproducedRow& r) {
  return {{"table", table.name},      {"source", r.source},   {"cell", r.cell},
          {"published", r.published}, {"ours", r.ours},       {"relative_error", r.relative_error},
          {"verdict", verdict(r)},    {"erratum", r.erratum}, {"file", r.file}};
}

ordered_json rows_json(const std::vector<ReproducedTable>& results) {
  ordered_json rows = ordered_json::array();
  for (const ReproducedTable& result : results) {
    for (const ReproducedRow& r : result.rows) rows.push_back(row_json(*result.table, r));
  }
  return rows;
}

ordered_json summary_json(const ReproducedTable& result) {
  const reports::ReproductionSummary& s = result.summary;
  return {{"table", s.table},         {"cells", s.cells},
          {"exact", s.exact},         {"exact_agree", s.exact_agree},
          {"corrected", s.corrected}, {"errata", s.errata},
          {"fitted", s.fitted},       {"mape", s.mape},
          {"worst", s.worst}};
}

ordered_json paper_json(const PaperSummary& p) {
  return {{"paper", p.group},
          {"title", p.title},
          {"tables", p.tables},
          {"exact", p.sums.exact},
          {"exact_agree", p.sums.exact_agree},
          {"corrected", p.sums.corrected},
          {"measured", p.sums.measured()},
          {"fitted", p.sums.fitted},
          {"mape", p.sums.mape},
          {"worst", p.sums.worst},
          {"errata", p.sums.errata}};
}

ordered_json result_json(const std::vector<ReproducedTable>& results,
                         const std::vector<PublishedGap>& gaps) {
  return {{"rows", rows_json(results)},
          {"summary", rows_of(results, summary_json)},
          {"papers", rows_of(reports::summarize_papers(results, {}), paper_json)},
          {"left_out", rows_of(gaps, [](const PublishedGap& gap) -> ordered_json {
             return {{"file", gap.file}, {"claim", gap.claim}, {"reason", gap.reason}};
           })}};
}

std::string rows_text(const ReproducedTable& result) {
  const ordered_json rows =
      rows_of(result.rows, [&](const ReproducedRow& r) { return row_json(*result.table, r); });
  const std::string table = table_text({{"cell", "cell"},
                                        {"published", "published"},
                                        {"ours", "ours", in("{:.6g}")},
                                        {"error", "relative_error", in_signed_percent},
                                        {"verdict", "verdict"},
                                        {"erratum", "erratum"}},
                                       rows);
  return result.table->title + "\n" + table + "\n";
}

/// Without mean and worst error where nothing was measured.
ordered_json shown_errors(ordered_json summary, std::size_t measured) {
  if (measured == 0) summary["mape"] = summary["worst"] = nullptr;
  return summary;
}

std::string summary_text(const std::vector<ReproducedTable>& results) {
  const ordered_json rows = rows_of(results, [](const ReproducedTable& result) {
    return shown_errors(summary_json(result), result.summary.measured());
  });
  return table_text({{"table", "table"},
                     {"cells", "cells"},
                     {"exact", "exact"},
                     {"agree", "exact_agree"},
                     {"corrected", "corrected"},
                     {"fitted", "fitted"},
                     {"errata", "errata"},
                     {"mean |error|", "mape", in_percent},
                     {"worst", "worst", in_percent}},
                    rows);
}

std::string papers_text(const std::vector<ReproducedTable>& results,
                        const std::vector<PublishedGap>& gaps) {
  const ordered_json rows =
      rows_of(reports::summarize_papers(results, gaps), [](const PaperSummary& p) {
        ordered_json row = shown_errors(paper_json(p), p.sums.measured());
        row["left_out"] = p.gaps;
        return row;
      });
  return table_text({{"paper", "title"},
                     {"tables", "tables"},
                     {"exact", "exact"},
                     {"agree", "exact_agree"},
                     {"corrected", "corrected"},
                     {"fitted", "fitted"},
                     {"measured", "measured"},
                     {"mean |error|", "mape", in_percent},
                     {"worst", "worst", in_percent},
                     {"errata", "errata"},
                     {"left out", "left_out"}},
                    rows);
}

/// One line for each way in which cells are wrong in print.
std::string errata_text(const std::vector<ReproducedTable>& results) {
  std::vector<std::pair<const ReproducedRow*, std::size_t>> misprints;  // the first cell, how many
  for (const ReproducedTable& result : results) {
    for (const ReproducedRow& r : result.rows) {
      if (r.erratum.empty()) continue;
      const auto known = std::find_if(misprints.begin(), misprints.end(),
                                      [&](const auto& m) { return m.first->erratum == r.erratum; });
      if (known == misprints.end()) {
        misprints.emplace_back(&r, 1);
      } else {
        ++known->second;
      }
    }
  }
  Table table({"cells", "published", "ours", "the first cell, and what is wrong with it"});
  for (const auto& [first, cells] : misprints) {
    table.add({std::to_string(cells), first->published, fmt::format("{:.6g}", first->ours),
               first->cell + "; " + first->erratum});
  }
  return table.text();
}

/// A table of TTFTs over its prompt lengths; anything else, and several tables, published numbers
/// and ours, and the errors of what was measured beside it.
void write_plots(const std::string& path, const std::vector<ReproducedTable>& results) {
  const bool ttfts =
      results.size() == 1 && std::any_of(results[0].rows.begin(), results[0].rows.end(),
                                         [](const ReproducedRow& r) { return r.prompt_len > 0; });
  if (ttfts) {
    reports::write_plot(reports::reproduced_ttft_plot(*results[0].table, results[0].rows), path);
    return;
  }
  const std::vector<PaperSummary> papers = reports::summarize_papers(results, {});
  const std::string title = results.size() == 1  ? results[0].table->title
                            : papers.size() == 1 ? papers[0].title
                                                 : fmt::format("{} papers", papers.size());
  reports::write_plot(reports::published_scatter_plot(title, results), path);
  const reports::Plot errors = reports::published_error_plot(title, results);
  if (!errors.series.empty()) reports::write_plot(errors, reports::error_plot_file(path));
}

void run(const Options& o, const Globals& globals) {
  if (o.errata && (o.output.json || o.summary)) {
    throw Error(
        "--errata: cannot be combined with --json, which has every erratum, or with --summary; "
        "expected one of them");
  }
  o.output.check({{"--summary", o.summary}, {"--errata", o.errata}});
  const Catalog catalog = globals.catalog();
  if (!o.engine.empty()) {
    parse_flag("--engine", o.engine,
               [&](const std::string& text) { return roofline::load_engine(catalog, text); });
  }
  std::vector<ReproducedTable> results;
  const std::vector<PublishedTable> all = reports::published_tables(catalog);
  const std::vector<PublishedGap> gaps = reports::Published(catalog).gaps();
  for (const PublishedTable* table : reports::select_tables(all, o.tables)) {
    results.push_back(reports::reproduced(*table, catalog, o.engine));
  }
  if (!o.plot.empty()) write_plots(o.plot, results);
  if (!o.output.csv.empty()) {
    write_rows_csv(o.output.csv,
                   columns_of({"table", "source", "cell", "published", "ours", "relative_error",
                               "verdict", "erratum", "file"}),
                   rows_json(results));
  }
  if (o.output.csv_is_stdout()) return;
  if (o.output.json) {
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
    for (const ReproducedTable& result : results) text += rows_text(result);
  }
  text += summary_text(results);
  if (whole) text += "\n" + papers_text(results, gaps);
  print_text(text);
}

/// The tables by paper, for the help; without a data folder, why none is listed.
std::string tables_text(const Globals& globals) {
  std::string text = "Tables, by paper:";
  std::string group;
  try {
    for (const PublishedTable& t : reports::published_tables(globals.catalog())) {
      text += (t.group == group ? "" : "\n  " + t.group + ":") + (" " + t.name);
      group = t.group;
    }
  } catch (const Error& e) {
    return std::string("Tables: not listed, since they cannot be read: ") + e.what();
  }
  return text;
}

}  // namespace

void add_reproduce(Command app, const Globals& globals) {
  Command command =
      app.add_subcommand("reproduce",
                         "Compare published tables with what kvcast computes.\n\nExamples:\n"
                         "  kvcast reproduce slim-table1\n"
                         "  kvcast reproduce all --csv reproduced.csv");
  command.footer([&globals] { return tables_text(globals); });
  const auto options = std::make_shared<Options>();
  command.add("TABLE", options->tables,
              "tables or papers; default, or all: one line for every table");
  command.add("--summary", options->summary, "one line per table");
  command.add("--errata", options->errata, "list the errors in print, one line per kind");
  command.add("--engine ENGINE[:VERSION]", options->engine,
              "engine of all forecasts on one device (kvcast engine list); default: the one that "
              "a table's row names, else ideal");
  options->output.add_to(command);
  command
      .add("--plot", options->plot,
           "one table of TTFTs: draw it over the prompt length; otherwise: our numbers over the "
           "published ones, and the errors of measured cells in FILE-errors")
      .draws(reports::with_error_plot);
  command.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
