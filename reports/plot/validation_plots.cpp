#include "reports/plot/validation_plots.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include "reports/plot/study_plots.h"

namespace kvcast::reports {
namespace {

const Axis measured_axis{"measured (s)", "measured_s"};
constexpr std::size_t most_series = 6;  // more would need more colours than there are

/// By method and metric, or by metric alone where there are too many methods.
std::vector<Comparison> comparisons(std::span<const measure::ValidationCase> cases) {
  std::vector<Comparison> list;
  std::set<std::string> series;
  for (const measure::ValidationCase& c : cases) {
    const std::string metric(name(c.metric).substr(0, name(c.metric).find('_')));
    list.push_back({measure::method_names(c.row.method) + ", " + metric, c.measured, c.predicted,
                    c.relative_error(), c.row.id});
    series.insert(list.back().series);
  }
  if (series.size() > most_series) {
    for (Comparison& c : list) c.series.erase(0, c.series.rfind(' ') + 1);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Comparison& a, const Comparison& b) { return a.series < b.series; });
  return list;
}

}  // namespace

Plot scatter_plot(std::span<const measure::ValidationCase> cases) {
  return comparison_plot("Predicted and measured times", measured_axis,
                         {"predicted (s)", "predicted_s"}, comparisons(cases));
}

Plot error_plot(std::span<const measure::ValidationCase> cases) {
  return comparison_error_plot("Relative error of predicted times", measured_axis,
                               "predicted / measured - 1", comparisons(cases));
}

Plot coverage_plot(std::span<const measure::CoverageRow> rows) {
  Plot plot{.title = "How often error bounds hold",
            .x = {.label = "median error bound (%)", .column = "median_bound", .unit = 0.01},
            .y = {.label = "rows within their bound (%)", .column = "coverage", .unit = 0.01},
            .levels = {{"nine in ten", 0.9}},
            .note = "each row against bounds from the rows of other sources"};
  for (const measure::Regime regime : measure::all_regimes) {
    std::vector<measure::CoverageRow> of_regime;
    for (const measure::CoverageRow& row : rows) {
      if (row.regime == regime) of_regime.push_back(row);
    }
    const measure::Coverage c = measure::coverage_of(of_regime);
    if (c.bounded == 0) continue;
    const std::string label = fmt::format("{}, {} rows", name(regime), c.bounded);
    plot.series.push_back({label, {{c.median_bound, c.share()}}, Style::Marks});
  }
  return plot;
}

Plot engine_plot(std::span<const measure::CoverageRow> rows) {
  std::map<std::string, std::size_t> rows_of_engine;
  for (const measure::CoverageRow& row : rows) ++rows_of_engine[row.of.row.engine];
  std::vector<std::size_t> counts;
  for (const auto& [engine, count] : rows_of_engine) counts.push_back(count);
  std::sort(counts.rbegin(), counts.rend());
  const std::size_t fewest = counts.size() > most_series ? counts[most_series - 2] : 0;
  std::vector<Comparison> list;
  for (const measure::CoverageRow& row : rows) {
    const measure::ValidationCase& c = row.of;
    const bool is_own = rows_of_engine[c.row.engine] >= fewest;
    list.push_back(
        {is_own ? c.row.engine : "others", c.measured, c.predicted, c.relative_error(), c.row.id});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Comparison& a, const Comparison& b) { return a.series < b.series; });
  return comparison_plot("Predicted and measured times by engine", measured_axis,
                         {"predicted (s)", "predicted_s"}, list);
}

std::vector<std::filesystem::path> coverage_plot_files(const std::filesystem::path& coverage) {
  return {coverage, picture_beside(coverage, "-forecasts")};
}

void write_coverage_plots(std::span<const measure::CoverageRow> rows,
                          const std::filesystem::path& coverage) {
  const std::vector<std::filesystem::path> files = coverage_plot_files(coverage);
  write_plot(coverage_plot(rows), files[0]);
  write_plot(engine_plot(rows), files[1]);
}

std::filesystem::path error_plot_file(const std::filesystem::path& scatter) {
  return picture_beside(scatter, "-errors");
}

std::vector<std::filesystem::path> with_error_plot(const std::filesystem::path& scatter) {
  return {scatter, error_plot_file(scatter)};
}

}  // namespace kvcast::reports
