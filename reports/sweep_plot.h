/// The pictures of a sweep: TTFT or memory over prompt length, and what TTFT is made of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reports/plot.h"
#include "reports/sweep_grid.h"

namespace kvcast::reports {

struct SweepPlot {
  Plot plot;
  std::size_t num_lines = 0;             ///< drawn
  std::uint64_t num_possible_lines = 0;  ///< configurations times batches of the grid
};

/// A line for each of the first `max_lines` configurations and batches of the grid, those that are
/// impossible left out, at the first output length. Labels name the axes with several values.
/// The grid has at least two prompt lengths. Throws Error when there is nothing to draw.
SweepPlot sweep_ttft_plot(const SweepGrid& grid, std::size_t max_lines = 8);

/// Weights, cache and activations of the grid's first possible configuration, at its first batch
/// and output length, under the device's capacity. Throws Error when there is nothing to draw.
SweepPlot sweep_memory_plot(const SweepGrid& grid);

/// A bar for each of the first `max_bars` configurations, those that are impossible left out, at
/// the first sizes: shares of TTFT stacked (TtftPart), named after the share of the prompt that the
/// methods keep or, without one, after the methods. Bars that differ in that share alone stand
/// together. `num_lines` counts bars. Throws Error when there is nothing to draw.
SweepPlot sweep_parts_plot(const SweepGrid& grid, std::size_t max_bars = 32);

}  // namespace kvcast::reports
