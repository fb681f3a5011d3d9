#include "reports/reproduce/reproduced_plots.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvcast::reports {
namespace {

/// The printed number in the unit of ours; none where their quotient says nothing.
std::optional<double> published_of(const ReproducedRow& row) {
  const double quotient = 1 + row.relative_error;
  if (row.ours == 0 || quotient == 0 || !std::isfinite(quotient)) return {};
  return row.ours / quotient;
}

Point point_of(const PublishedTable& table, const ReproducedRow& row, double x, double y) {
  return {.x = x, .y = y, .name = table.name + ": " + row.cell};
}

/// The series of measured cells; of the table that has one already, that one.
Series& measured_series(std::vector<Series>& list, const PublishedTable& table) {
  const std::string label = table.name + ", measured";
  if (list.empty() || list.back().label != label) {
    list.push_back({.label = label, .style = Style::Marks});
  }
  return list.back();
}

}  // namespace

Plot published_scatter_plot(const std::string& title, std::span<const ReproducedTable> tables) {
  Series exact{.label = "exact cells", .style = Style::Marks};
  Series misprinted{.label = "misprinted cells", .style = Style::Marks};
  std::vector<Series> measured;
  double low = HUGE_VAL;
  double high = 0;
  for (const ReproducedTable& t : tables) {
    for (const ReproducedRow& row : t.rows) {
      const std::optional<double> published = published_of(row);
      if (!published) continue;
      if (*published > 0) {
        low = std::min(low, *published);
        high = std::max(high, *published);
      }
      Series& series = !row.exact      ? measured_series(measured, *t.table)
                       : row.corrected ? misprinted
                                       : exact;
      series.points.push_back(point_of(*t.table, row, *published, row.ours));
    }
  }
  Plot plot;
  plot.title = title + ": published numbers and ours";
  plot.x = {"published (in the cell's unit)", "published", Scale::Log10};
  plot.y = {"ours (in the cell's unit)", "ours", Scale::Log10};
  if (low < high) {
    plot.series.push_back({.label = "equal", .points = {{low, low}, {high, high}}});
  }
  for (Series* s : {&exact, &misprinted}) {
    if (!s->points.empty()) plot.series.push_back(std::move(*s));
  }
  for (Series& s : measured) plot.series.push_back(std::move(s));
  return plot;
}

Plot published_error_plot(const std::string& title, std::span<const ReproducedTable> tables) {
  Plot plot;
  plot.title = title + ": relative error of measured cells";
  plot.x = {"published (in the cell's unit)", "published", Scale::Log10};
  plot.y = {"ours / published - 1", "relative_error"};
  plot.levels = {{"exact", 0}};
  for (const ReproducedTable& t : tables) {
    for (const ReproducedRow& row : t.rows) {
      const std::optional<double> published = published_of(row);
      if (row.exact || !published) continue;
      Series& series = measured_series(plot.series, *t.table);
      series.points.push_back(point_of(*t.table, row, *published, row.relative_error));
    }
  }
  return plot;
}

}  // namespace kvcast::reports
