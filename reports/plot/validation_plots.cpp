#include "reports/plot/validation_plots.h"

#include <algorithm>
#include <set>
#include <string>

#include "reports/plot/study_plots.h"

namespace kvcast::reports {
namespace {

const Axis measured_axis{"measured (s)", "measured_s"};

/// By method and metric, or by metric alone where methods would need more colours than there are.
std::vector<Comparison> comparisons(std::span<const measure::ValidationCase> cases) {
  constexpr std::size_t most_series = 6;
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

std::filesystem::path error_plot_file(const std::filesystem::path& scatter) {
  return picture_beside(scatter, "-errors");
}

std::vector<std::filesystem::path> with_error_plot(const std::filesystem::path& scatter) {
  return {scatter, error_plot_file(scatter)};
}

}  // namespace kvcast::reports
