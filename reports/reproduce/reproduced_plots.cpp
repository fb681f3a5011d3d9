#include "reports/reproduce/reproduced_plots.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/plot/study_plots.h"

namespace kvcast::reports {
namespace {

const Axis published_axis{"published (in the cell's unit)", "published"};

/// Exact cells, misprinted ones and the measured cells of each table, in this order. Without what
/// is zero in print or ours, of which the quotient says nothing.
std::vector<Comparison> comparisons(std::span<const ReproducedTable> tables, bool measured_only) {
  const std::array<std::string, 2> exact = {"exact cells", "misprinted cells"};
  std::vector<Comparison> list;
  for (const ReproducedTable& t : tables) {
    for (const ReproducedRow& row : t.rows) {
      const double quotient = 1 + row.relative_error;
      if (row.ours == 0 || quotient == 0 || !std::isfinite(quotient)) continue;
      if (measured_only && row.exact) continue;
      list.push_back({row.exact ? exact[row.corrected ? 1 : 0] : t.table->name + ", measured",
                      row.ours / quotient, row.ours, row.relative_error,
                      t.table->name + ": " + row.cell});
    }
  }
  const auto order = [&](const Comparison& c) {
    return std::find(exact.begin(), exact.end(), c.series);
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Comparison& a, const Comparison& b) { return order(a) < order(b); });
  return list;
}

}  // namespace

Plot published_scatter_plot(const std::string& title, std::span<const ReproducedTable> tables) {
  return comparison_plot(title + ": published numbers and ours", published_axis,
                         {"ours (in the cell's unit)", "ours"}, comparisons(tables, false));
}

Plot published_error_plot(const std::string& title, std::span<const ReproducedTable> tables) {
  return comparison_error_plot(title + ": relative error of measured cells", published_axis,
                               "ours / published - 1", comparisons(tables, true));
}

}  // namespace kvcast::reports
