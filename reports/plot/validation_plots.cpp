#include "reports/plot/validation_plots.h"

#include <algorithm>
#include <map>

namespace kvcast::reports {
namespace {

/// Marks of each method and metric; `y` of a case.
std::vector<Series> marks(std::span<const measure::ValidationCase> cases,
                          double (*y)(const measure::ValidationCase&)) {
  std::map<std::string, Series> by_label;
  for (const measure::ValidationCase& c : cases) {
    const std::string metric(name(c.metric).substr(0, name(c.metric).find('_')));
    const std::string label = measure::method_names(c.row.method) + ", " + metric;
    Series& s = by_label[label];
    s.label = label;
    s.style = Style::Marks;
    s.points.push_back({c.measured, y(c), c.row.id});
  }
  std::vector<Series> list;
  for (auto& [label, s] : by_label) list.push_back(std::move(s));
  return list;
}

}  // namespace

Plot scatter_plot(std::span<const measure::ValidationCase> cases) {
  Plot plot;
  plot.title = "Predicted and measured times";
  plot.x = {"measured (s)", "measured_s", Scale::Log10};
  plot.y = {"predicted (s)", "predicted_s", Scale::Log10};
  const auto [low, high] =
      std::minmax_element(cases.begin(), cases.end(),
                          [](const auto& a, const auto& b) { return a.measured < b.measured; });
  if (low != cases.end()) {
    plot.series.push_back(
        {"equal", {{low->measured, low->measured}, {high->measured, high->measured}}, Style::Line});
  }
  for (Series& s : marks(cases, [](const measure::ValidationCase& c) { return c.predicted; })) {
    plot.series.push_back(std::move(s));
  }
  return plot;
}

Plot error_plot(std::span<const measure::ValidationCase> cases) {
  Plot plot;
  plot.title = "Relative error of predicted times";
  plot.x = {"measured (s)", "measured_s", Scale::Log10};
  plot.y = {"predicted / measured - 1", "relative_error"};
  plot.series = marks(cases, [](const measure::ValidationCase& c) { return c.relative_error(); });
  plot.levels = {{"exact", 0}};
  return plot;
}

std::filesystem::path error_plot_file(const std::filesystem::path& scatter) {
  std::filesystem::path file = scatter;
  return file.replace_filename(scatter.stem().string() + "-errors" + scatter.extension().string());
}

std::vector<std::filesystem::path> with_error_plot(const std::filesystem::path& scatter) {
  return {scatter, error_plot_file(scatter)};
}

}  // namespace kvcast::reports
