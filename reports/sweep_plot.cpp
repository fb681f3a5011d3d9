#include "reports/sweep_plot.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/error.h"
#include "reports/study_plots.h"
#include "reports/sweep_rows.h"

namespace kvcast::reports {
namespace {

/// More points than a line on a screen can show.
constexpr std::size_t max_points = 500;

/// Points of one line; none when the configuration is impossible.
std::vector<TtftPoint> line_points(const SweepGrid& grid, ConfigurationRows& rows,
                                   std::size_t batch, const std::string& label) {
  const std::vector<std::uint64_t>& prompt_lens = grid.spec().prompt_len;
  const std::size_t num_outputs = grid.spec().output_len.size();
  const std::size_t stride = (prompt_lens.size() + max_points - 1) / max_points;
  std::vector<TtftPoint> points;
  RowScratch scratch;
  for (std::size_t i = 0; i < prompt_lens.size(); i += stride) {
    const std::uint64_t size = (batch * prompt_lens.size() + i) * num_outputs;
    try {
      rows.evaluate(size, size + 1, scratch);
    } catch (const Error&) {
      return {};
    }
    const double ttft_s = scratch.estimates[0].ttft_s;
    if (std::isfinite(ttft_s)) points.push_back({label, prompt_lens[i], ttft_s, false});
  }
  return points;
}

}  // namespace

SweepPlot sweep_ttft_plot(const SweepGrid& grid, std::size_t max_lines) {
  const std::vector<std::uint64_t>& batches = grid.spec().batch;
  KVCAST_ASSERT(grid.spec().prompt_len.size() > 1);
  SweepPlot result;
  result.num_possible_lines = grid.num_configurations() * batches.size();
  std::vector<TtftPoint> points;
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    ConfigurationRows rows(grid, c);
    for (std::size_t b = 0; b < batches.size() && result.num_lines < max_lines; ++b) {
      std::string label = grid.label(c);
      if (batches.size() > 1) label += fmt::format(", batch {}", batches[b]);
      const std::vector<TtftPoint> line = line_points(grid, rows, b, label);
      if (line.empty()) break;  // impossible at any batch
      points.insert(points.end(), line.begin(), line.end());
      ++result.num_lines;
    }
    if (result.num_lines == max_lines) break;
  }
  if (points.empty()) throw Error("the plot: every configuration of the grid is impossible");
  result.plot = ttft_plot(points);
  return result;
}

}  // namespace kvcast::reports
