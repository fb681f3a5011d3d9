#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/frame/help_format.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "model/base/error.h"
#include "reports/plot/validation_plots.h"
#include "reports/reproduce/reproduce.h"
#include "reports/reproduce/reproduced_plots.h"
#include "reports/reproduce/serving_study.h"

namespace kvcast::cli {
namespace {

using reports::PaperSummary;
using reports::PublishedGap;
using reports::PublishedTable;
using reports::ReproducedRow;
using reports::ReproducedTable;
using reports::ServingStudy;

constexpr std::size_t paper_column = 16;

struct ReproduceOptions {
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

/// Null for rates that there are none of.
ordered_json rate_json(double qps) { return qps > 0 ? ordered_json(qps) : ordered_json(nullptr); }

ordered_json range_json(const reports::RateRange& r) {
  return {{"holds", rate_json(r.holds)}, {"fails", rate_json(r.fails)}};
}

ordered_json serving_row_json(const reports::ServingRow& r) {
  ordered_json row{{"category", r.category},
                   {"model", r.base_model},
                   {"method", r.method()},
                   {"keep", r.keep},
                   {"ours", range_json(r.range())},
                   {"highest_qps", or_null(r.highest_qps)},
                   {"ttft_alone_s", r.ttft_alone_s},
                   {"doubles_at", or_null(reports::latency_doubles_at(r.curve.points))},
                   {"shortest_outputs", range_json(r.shortest_outputs)}};
  row["other_look_ahead"] = r.other_look_ahead ? range_json(*r.other_look_ahead) : ordered_json();
  row["published"] = r.published ? range_json(*r.published) : ordered_json();
  row["published_doubles_at"] = or_null(reports::latency_doubles_at(r.published_points));
  row["points"] = rows_of(r.curve.points, [](const reports::ServedPoint& p) -> ordered_json {
    return {{"qps", p.qps}, {"mean_s", p.mean_s}, {"missed", p.missed}, {"holds", p.holds}};
  });
  return row;
}

ordered_json gain_json(const reports::ServingGain& g) {
  return {{"of_grid", rate_json(g.of_grid)},
          {"least", rate_json(g.least)},
          {"most", rate_json(g.most)}};
}

ordered_json serving_json(const ServingStudy& study) {
  return {{"curves", rows_of(study.rows, serving_row_json)},
          {"gains", rows_of(study.gains,
                            [](const reports::ServingGainRow& g) -> ordered_json {
                              return {{"category", g.category},
                                      {"model", g.base_model},
                                      {"keep", g.keep},
                                      {"published",
                                       g.published ? gain_json(*g.published) : ordered_json()},
                                      {"ours", gain_json(g.ours)},
                                      {"between_grid", or_null(g.between_grid)},
                                      {"shortest_outputs", gain_json(g.shortest_outputs)}};
                            })},
          {"keep_rates", rows_of(study.keeps, [](const reports::ServingKeepRow& k) -> ordered_json {
             return {{"model", k.base_model},
                     {"keep", k.keep},
                     {"ttft_alone_s", k.ttft_alone_s},
                     {"highest_qps", k.highest_qps},
                     {"product", k.highest_qps * k.ttft_alone_s},
                     {"long_run_qps", k.long_run_qps},
                     {"long_run_product", k.long_run_qps * k.ttft_alone_s}};
           })}};
}

/// "1.4 - 1.8": the true highest rate lies between.
std::string in_range(const ordered_json& r) {
  if (r.is_null()) return "";
  if (r["fails"].is_null()) return fmt::format("from {:g}", r["holds"].get<double>());
  const double holds = r["holds"].is_null() ? 0 : r["holds"].get<double>();
  return fmt::format("{:g} - {:g}", holds, r["fails"].get<double>());
}

std::string in_gain_range(const ordered_json& g) {
  if (g.is_null() || g["least"].is_null()) return "";
  if (g["most"].is_null()) return fmt::format("from {:.2f}", g["least"].get<double>());
  return fmt::format("{:.2f} - {:.2f}", g["least"].get<double>(), g["most"].get<double>());
}

std::string serving_text(const ServingStudy& study) {
  const ordered_json j = serving_json(study);
  const std::string curves = table_text({{"category", "category"},
                                         {"model", "model"},
                                         {"method", "method"},
                                         {"keep", "keep"},
                                         {"published", "published", in_range},
                                         {"ours", "ours", in_range},
                                         {"outputs of 1", "shortest_outputs", in_range},
                                         {"look-ahead 8", "other_look_ahead", in_range},
                                         {"highest", "highest_qps", in("{:.2f}")},
                                         {"TTFT alone", "ttft_alone_s", in_seconds},
                                         {"published doubles", "published_doubles_at", in("{:g}")},
                                         {"ours doubles", "doubles_at", in("{:g}")}},
                                        j["curves"]);
  const std::string gains = table_text({{"category", "category"},
                                        {"model", "model"},
                                        {"keep", "keep"},
                                        {"published", "/published/of_grid", in("{:.2f}")},
                                        {"may be", "published", in_gain_range},
                                        {"ours", "/ours/of_grid", in("{:.2f}")},
                                        {"may be", "ours", in_gain_range},
                                        {"between rates", "between_grid", in("{:.2f}")},
                                        {"outputs of 1", "shortest_outputs", in_gain_range}},
                                       j["gains"]);
  const std::string keeps = table_text({{"model", "model"},
                                        {"keep", "keep"},
                                        {"TTFT alone", "ttft_alone_s", in_seconds},
                                        {"highest", "highest_qps", in("{:.2f}")},
                                        {"times TTFT", "product", in("{:.2f}")},
                                        {"highest, long run", "long_run_qps", in("{:.2f}")},
                                        {"times TTFT", "long_run_product", in("{:.2f}")}},
                                       j["keep_rates"]);
  return fmt::format(
      "Queries a second: the last rate of the grid that holds and the first that fails; the "
      "highest "
      "that holds, if any fails; where the mean latency is twice that at 0.2/s\n{}\n"
      "Highest rate of SpecPrefill over plain's\n{}\n"
      "{} with outputs of 1 token: highest rate of the client's requests, and of them {} times "
      "over\n{}\n",
      curves, gains, study.rows.front().category, reports::ServingKeepRow::times, keeps);
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
  Table table({"cells", "published", "ours", "the first cell, and what is wrong with it"},
              Table::Long::Wrap);
  for (const auto& [first, cells] : misprints) {
    table.add({std::to_string(cells), first->published, fmt::format("{:.6g}", first->ours),
               first->cell + "; " + first->erratum});
  }
  return table.text();
}

std::vector<std::filesystem::path> all_plots(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files = reports::serving_plot_files(path);
  files.push_back(reports::error_plot_file(path));
  return files;
}

/// A server's curves; a table of TTFTs over its prompt lengths; anything else, and several tables,
/// published numbers and ours, and the errors of what was measured beside it.
void write_plots(const std::string& path, const std::vector<ReproducedTable>& results,
                 const std::optional<ServingStudy>& serving) {
  if (serving && results.size() == 1) {
    const std::vector<reports::Plot> plots = reports::serving_plots(*serving);
    const std::vector<std::filesystem::path> files = reports::serving_plot_files(path);
    for (std::size_t i = 0; i < plots.size(); ++i) reports::write_plot(plots[i], files.at(i));
    return;
  }
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

void run(const ReproduceOptions& o, const Globals& globals) {
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
  std::optional<ServingStudy> serving;
  const bool shows_serving =
      !o.plot.empty() || !(o.summary || o.errata || o.output.csv_is_stdout());
  if (results.size() == 1 && results[0].table->serving && shows_serving) {
    serving = results[0].table->serving(catalog);
  }
  if (!o.plot.empty()) write_plots(o.plot, results, serving);
  if (!o.output.csv.empty()) {
    write_rows_csv(o.output.csv,
                   columns_of({"table", "source", "cell", "published", "ours", "relative_error",
                               "verdict", "erratum", "file"}),
                   rows_json(results));
  }
  if (o.output.csv_is_stdout()) return;
  if (o.output.json) {
    ordered_json j = result_json(results, gaps);
    if (serving) j["serving"] = serving_json(*serving);
    print_json(j);
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
  if (serving) text += serving_text(*serving);
  text += summary_text(results);
  if (whole) text += "\n" + papers_text(results, gaps);
  print_text(text);
}

/// The tables by paper, for the help; without a data folder, why none is listed.
std::string tables_text(const Globals& globals) {
  std::vector<std::pair<std::string, std::string>> groups;
  try {
    for (const PublishedTable& t : reports::published_tables(globals.catalog())) {
      if (groups.empty() || groups.back().first != t.group) groups.push_back({t.group, ""});
      groups.back().second += " " + t.name;
    }
  } catch (const Error& e) {
    return std::string("Tables: not listed, since they cannot be read: ") + e.what();
  }
  std::string text = "Tables, by paper:\n";
  for (const auto& [group, tables] : groups) text += help_line(group, tables, paper_column);
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
  const auto options = std::make_shared<ReproduceOptions>();
  command.add("TABLE", options->tables,
              "tables or papers; default, or all: one line for every table");
  command.add("--summary", options->summary, "one line per table");
  command.add("--errata", options->errata, "list the errors in print, one line per kind");
  command.add("--engine ENGINE[:VERSION]", options->engine,
              "engine of all forecasts on one device (kvcast engine list); default: the one that "
              "a table's row names, else ideal");
  options->output.add_to(command);
  command
      .add(
          "--plot", options->plot,
          "one table of TTFTs: draw it over the prompt length; specprefill-serving: latencies over "
          "queries a second, a picture for each category; otherwise: our numbers over the "
          "published "
          "ones, and the errors of measured cells in FILE-errors")
      .draws(all_plots);
  command.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
