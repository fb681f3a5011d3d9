/// The pictures of a sweep: TTFT or memory over prompt length, and what TTFT is made of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reports/plot/plot.h"
#include "reports/sweep/sweep_grid.h"

namespace kvcast::reports {

struct SweepPlot {
  Plot plot;
  std::size_t num_lines = 0;             ///< drawn
  std::uint64_t num_possible_lines = 0;  ///< configurations times batches of the grid
};

/// Ours: what an eye can tell apart.
inline constexpr std::size_t max_lines = 8;
inline constexpr std::size_t max_bars = 32;

/// A line for each of the first `most` configurations and batches of the grid, those that are
/// impossible left out, at the first output length. Labels name the axes with several values.
/// The grid has at least two prompt lengths. Throws Error when there is nothing to draw.
SweepPlot sweep_ttft_plot(const SweepGrid& grid, std::size_t most = max_lines);

/// Weights, cache and activations of the grid's first possible configuration, at its first batch
/// and output length, under the device's capacity. Throws Error when there is nothing to draw.
SweepPlot sweep_memory_plot(const SweepGrid& grid);

/// A bar for each of the first `most` configurations, those that are impossible left out, at
/// the first sizes: shares of TTFT stacked (TtftPart), named after the share of the prompt that the
/// methods keep or, without one, after the methods and the
/// options in which they differ. Bars that differ in that share alone stand
/// together. `num_lines` counts bars. Throws Error when there is nothing to draw.
SweepPlot sweep_parts_plot(const SweepGrid& grid, std::size_t most = max_bars);

}  // namespace kvcast::reports
