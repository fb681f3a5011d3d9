#include "reports/plot/validation_plots.h"

#include <algorithm>

#include "reports/plot/study_plots.h"

namespace kvcast::reports {
namespace {

const Axis measured_axis{"measured (s)", "measured_s"};

/// By method and metric.
std::vector<Comparison> comparisons(std::span<const measure::ValidationCase> cases) {
  std::vector<Comparison> list;
  for (const measure::ValidationCase& c : cases) {
    const std::string metric(name(c.metric).substr(0, name(c.metric).find('_')));
    list.push_back({measure::method_names(c.row.method) + ", " + metric, c.measured, c.predicted,
                    c.relative_error(), c.row.id});
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
