/// Plots of published numbers against ours.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reports/plot/plot.h"
#include "reports/reproduce/reproduce.h"

namespace kvcast::reports {

/// `title` names the tables. Ours over the published numbers, both logarithmic and each in its
/// cell's own unit: the line of equal numbers, exact cells, misprinted ones (those with an
/// erratum), and the measured cells of each table. What is zero in print or ours is in the CSV
/// alone.
Plot published_scatter_plot(const std::string& title, std::span<const ReproducedTable> tables);

/// Relative error of the measured cells over the published numbers, a series a table. Without
/// points when nothing was measured.
Plot published_error_plot(const std::string& title, std::span<const ReproducedTable> tables);

}  // namespace kvcast::reports
