/// Pictures of a validation: predicted beside measured times.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "measure/validation.h"
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

}  // namespace kvcast::reports
