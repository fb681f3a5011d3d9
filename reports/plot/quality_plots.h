/// Pictures of measured quality: distance from the base model over TTFT and keep rate.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "measure/quality_summary.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

struct QualityPlot {
  std::filesystem::path picture;
  Plot plot;
};

/// All that quality_plots may draw: `picture` and those beside it.
std::vector<std::filesystem::path> quality_pictures(const std::filesystem::path& picture);

/// `picture`: KL divergence over TTFT, for needles alone the share answered; beside it, by a suffix
/// of its stem, "-agreement" and "-needle" over TTFT and "-keep", KL divergence over the keep rate.
std::vector<QualityPlot> quality_plots(std::span<const measure::QualityRow> rows,
                                       const std::filesystem::path& picture);

}  // namespace kvcast::reports
