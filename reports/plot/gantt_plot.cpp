#include "reports/plot/gantt_plot.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvcast::reports {
namespace {

using simulate::Interval;
using simulate::IntervalKind;

constexpr int grey = 6;  // of the palette

/// Where a kind of span lies in its row, which is 1 high.
struct Lane {
  double offset = 0;
  double height = 0;
};

Lane lane_of(IntervalKind kind) {
  switch (kind) {
    case IntervalKind::Compute: return {0.16, 0.5};
    case IntervalKind::Wait: return {0.16, 0.2};
    case IntervalKind::Transfer: return {-0.24, 0.2};
    case IntervalKind::Background: return {-0.38, 0.06};
  }
  return {};
}

/// Sorted by begin; spans whose gap is below `least` become one.
std::vector<Point> joined(std::vector<Point> points, double least) {
  std::sort(points.begin(), points.end(),
            [](const Point& a, const Point& b) { return a.y != b.y ? a.y > b.y : a.x < b.x; });
  std::vector<Point> result;
  for (Point& p : points) {
    if (!result.empty() && result.back().y == p.y && p.x - result.back().x_end < least) {
      result.back().x_end = std::max(result.back().x_end, p.x_end);
    } else {
      result.push_back(std::move(p));
    }
  }
  return result;
}

}  // namespace

Plot gantt_plot(const simulate::Simulation& simulation, const simulate::RunResult& result,
                std::string title) {
  constexpr double columns = 4000;  // several spans to a pixel
  const std::uint32_t devices = simulation.platform().num_devices();
  const std::size_t num_labels = simulation.labels().size();
  // Computations by their label, then what is waited for and sent.
  std::map<std::size_t, Series> series;
  for (const Interval& i : result.intervals) {
    const Lane lane = lane_of(i.kind);
    std::size_t place = num_labels + static_cast<std::size_t>(i.kind);
    if (i.kind == IntervalKind::Compute) place = i.detail;
    Series& s = series[place];
    s.style = Style::Spans;
    s.height = lane.height;
    switch (i.kind) {
      case IntervalKind::Compute:
        s.label = simulation.labels()[i.detail];
        s.color = static_cast<int>(i.detail % grey);
        break;
      case IntervalKind::Wait:
        s.label = "waiting";
        s.color = grey;
        break;
      case IntervalKind::Transfer:
        s.label = "messages sent";
        s.color = 4;
        break;
      case IntervalKind::Background:
        s.label = "background flows sent";
        s.color = 5;
        break;
    }
    const double row = devices - 1 - i.rank + lane.offset;
    s.points.push_back({i.begin_s, row, simulation.platform().device_name(i.rank), i.end_s});
  }
  Plot plot;
  plot.title = std::move(title);
  plot.x = {.label = "Time (ms)", .column = "time_s", .unit = 1e-3, .from = 0};
  plot.y = {.label = "Device", .column = "row"};
  for (std::uint32_t d = 0; d < devices; ++d) {
    plot.y.names.push_back(simulation.platform().device_name(devices - 1 - d));
  }
  for (auto& [place, s] : series) {
    s.points = joined(std::move(s.points), result.makespan_s / columns);
    plot.series.push_back(std::move(s));
  }
  plot.note = fmt::format("TTFT {:.6g} ms, last process {:.6g} ms; {} messages, {:.4g} MB in all",
                          result.ttft_s * 1e3, result.makespan_s * 1e3, result.messages,
                          static_cast<double>(result.message_bytes) / 1e6);
  return plot;
}

}  // namespace kvcast::reports
