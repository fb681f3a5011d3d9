#include "reports/sweep_plot.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/error.h"
#include "reports/study_plots.h"
#include "reports/sweep_rows.h"

namespace kvcast::reports {
namespace {

/// More points than a line on a screen can show.
constexpr std::size_t max_points = 500;

struct LinePoint {
  std::uint64_t prompt_len = 0;
  roofline::Estimate estimate;
};

/// Points of one line, at the first output length; none when the configuration is impossible.
std::vector<LinePoint> line_points(const SweepGrid& grid, ConfigurationRows& rows,
                                   std::size_t batch) {
  const std::vector<std::uint64_t>& prompt_lens = grid.spec().prompt_len;
  const std::size_t num_outputs = grid.spec().output_len.size();
  const std::size_t stride = (prompt_lens.size() + max_points - 1) / max_points;
  std::vector<LinePoint> points;
  RowScratch scratch;
  for (std::size_t i = 0; i < prompt_lens.size(); i += stride) {
    const std::uint64_t size = (batch * prompt_lens.size() + i) * num_outputs;
    try {
      rows.evaluate(size, size + 1, scratch);
    } catch (const Error&) {
      return {};
    }
    if (std::isfinite(scratch.estimates[0].ttft_s)) {
      points.push_back({prompt_lens[i], scratch.estimates[0]});
    }
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
      const std::vector<LinePoint> line = line_points(grid, rows, b);
      if (line.empty()) break;  // impossible at any batch
      for (const LinePoint& p : line) {
        points.push_back({label, p.prompt_len, p.estimate.ttft_s, false});
      }
      ++result.num_lines;
    }
    if (result.num_lines == max_lines) break;
  }
  if (points.empty()) throw Error("the plot: every configuration of the grid is impossible");
  std::string title = "Time to first token";
  if (grid.spec().hardware.size() == 1) title += " on " + grid.spec().hardware[0];
  result.plot = ttft_plot(points, title);
  return result;
}

SweepPlot sweep_memory_plot(const SweepGrid& grid) {
  KVCAST_ASSERT(grid.spec().prompt_len.size() > 1);
  SweepPlot result;
  result.num_possible_lines = grid.num_configurations() * grid.spec().batch.size();
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    ConfigurationRows rows(grid, c);
    std::vector<MemoryPoint> points;
    for (const LinePoint& p : line_points(grid, rows, 0)) {
      const roofline::Estimate& e = p.estimate;
      points.push_back({p.prompt_len, e.weight_bytes, e.kv_cache_bytes,
                        e.peak_memory_bytes - e.weight_bytes - e.kv_cache_bytes});
    }
    if (points.empty()) continue;
    const roofline::Configuration configuration = grid.configuration(c);
    MemoryPlotOptions options;
    options.title =
        fmt::format("Memory of {}, batch {}, output {}", configuration.architecture.name,
                    grid.spec().batch[0], grid.spec().output_len[0]);
    options.device = configuration.hardware.name;
    options.capacity_bytes = configuration.hardware.memory_capacity.value;
    result.plot = memory_plot(points, options);
    result.num_lines = 1;
    return result;
  }
  throw Error("the plot: every configuration of the grid is impossible");
}

}  // namespace kvcast::reports
