#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/validate/validate_parts.h"
#include "measure/coverage.h"
#include "reports/plot/validation_plots.h"

namespace kvcast::cli {
namespace {

using measure::CoverageRow;

struct CoverageOptions {
  std::vector<std::string> measurements;
  std::string engine;
  std::string csv;
  std::string plot;
  bool json = false;
};

ordered_json row_json(const CoverageRow& row) {
  ordered_json j = measure::case_json(row.of);
  const std::optional<measure::ErrorBound>& b = row.bound.bound;
  j["regime"] = name(row.regime);
  j["error_bound"] = nullptr;
  j["inside"] = nullptr;
  if (b) {
    j["error_bound"] = b->error;
    j["inside"] = row.is_inside();
  }
  j["population"] = b ? b->population : row.bound.reason;
  return j;
}

ordered_json summary_json(std::string_view regime, const std::vector<CoverageRow>& rows) {
  const measure::Coverage c = measure::coverage_of(rows);
  ordered_json j{{"regime", regime}, {"rows", c.rows}, {"bounded", c.bounded}};
  j["coverage"] = nullptr;
  j["median_bound"] = nullptr;
  if (c.bounded > 0) {
    j["coverage"] = c.share();
    j["median_bound"] = c.median_bound;
  }
  return j;
}

/// Of each regime that has rows, and of all rows.
ordered_json summaries_json(const std::vector<CoverageRow>& rows) {
  ordered_json j = ordered_json::array();
  for (const measure::Regime regime : measure::all_regimes) {
    std::vector<CoverageRow> of_regime;
    for (const CoverageRow& row : rows) {
      if (row.regime == regime) of_regime.push_back(row);
    }
    if (!of_regime.empty()) j.push_back(summary_json(name(regime), of_regime));
  }
  j.push_back(summary_json("all", rows));
  return j;
}

void validate_coverage(const CoverageOptions& o, const Globals& globals) {
  check_rows_alone(o.csv, {{"--json", o.json}});
  measure::Measurements all;
  for (const std::string& file : o.measurements) {
    const measure::Measurements one = measure::read_measurements(file);
    all.rows.insert(all.rows.end(), one.rows.begin(), one.rows.end());
  }
  const Catalog catalog = globals.catalog();
  measure::DeviceChoice choice;
  choice.engine = o.engine;
  const measure::Validation v = measure::validate(all, catalog, choice);
  const std::vector<CoverageRow> rows = measure::leave_sources_out(v, catalog);
  ordered_json j;
  j["rows"] = rows_of(rows, row_json);
  j["regimes"] = summaries_json(rows);
  j["unmatched"] = v.unmatched.size();
  if (!o.csv.empty()) {
    std::vector<std::string> keys;
    const ordered_json first = row_json({});
    for (const auto& [key, value] : first.items()) keys.push_back(key);
    write_rows_csv(o.csv, columns_of(keys), j["rows"]);
  }
  if (!o.plot.empty()) reports::write_coverage_plots(rows, o.plot);
  if (o.csv == "-") return;
  std::string text = table_text({{"regime", "regime"},
                                 {"rows", "rows"},
                                 {"with a bound", "bounded"},
                                 {"bound holds", "coverage", in_percent},
                                 {"median bound", "median_bound", in_percent}},
                                j["regimes"]);
  if (!v.unmatched.empty()) {
    text += fmt::format("{} rows without a forecast (kvcast validate lists them)\n",
                        v.unmatched.size());
  }
  print_result(o.json, j, text);
}

}  // namespace

void add_validate_coverage(Command validate, const Globals& globals) {
  Command c = validate.add_subcommand(
      "coverage",
      "Check how often error bounds hold.\n\nThe bounds of each row come from the rows of other "
      "sources alone (column source, up to its first space). Nine in ten should hold.\n\n"
      "Examples:\n"
      "  kvcast validate coverage --measurements data/measurements/public_llm_latency.csv\n"
      "  kvcast validate coverage --engine ideal --plot coverage.svg --measurements "
      "data/measurements/public_llm_latency.csv data/measurements/published_ttft.csv");
  const auto o = std::make_shared<CoverageOptions>();
  c.add("--measurements FILE ...", o->measurements,
        "measurements, as kvcast validate reads them; rows of several files count together")
      .required();
  c.add("--engine NAME[:VERSION]", o->engine,
        "engine of all rows; default: each row's own if it is there, else ideal");
  c.add("--csv", o->csv);
  c.add("--plot", o->plot,
        "draw coverage over the width of bounds; forecasts by engine go to FILE-forecasts")
      .draws(reports::coverage_plot_files);
  c.add("--json", o->json);
  c.callback([o, &globals] { validate_coverage(*o, globals); });
}

}  // namespace kvcast::cli
