/// Pictures of a validation: predicted beside measured times.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "measure/coverage.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

/// Predicted over measured seconds, a series for each method, and the line where they are equal.
Plot scatter_plot(std::span<const measure::ValidationCase> cases);
/// Relative error over measured seconds.
Plot error_plot(std::span<const measure::ValidationCase> cases);
/// "FILE-errors.svg" for "FILE.svg".
std::filesystem::path error_plot_file(const std::filesystem::path& scatter);
/// Both.
std::vector<std::filesystem::path> with_error_plot(const std::filesystem::path& scatter);

/// The share of rows within their bounds over the median bound, a point for each regime, and the
/// level of nine in ten.
Plot coverage_plot(std::span<const measure::CoverageRow> rows);
/// Predicted over measured seconds, a series for each engine.
Plot engine_plot(std::span<const measure::CoverageRow> rows);
/// "FILE.svg" and "FILE-forecasts.svg", which write_coverage_plots writes. Throws Error.
std::vector<std::filesystem::path> coverage_plot_files(const std::filesystem::path& coverage);
void write_coverage_plots(std::span<const measure::CoverageRow> rows,
                          const std::filesystem::path& coverage);

}  // namespace kvcast::reports
