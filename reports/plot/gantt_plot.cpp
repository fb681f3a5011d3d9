#include "reports/plot/gantt_plot.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::reports {
namespace {

using simulate::Interval;
using simulate::IntervalKind;

constexpr int num_label_colors = 6;  // the palette's last one is for waiting

/// A kind of span and where it lies in its row, which is 1 high.
struct Kind {
  const char* label;  ///< null: that of the computation
  int color;          ///< -1: by the label
  double offset;
  double height;
};

Kind kind_of(IntervalKind kind) {
  switch (kind) {
    case IntervalKind::Compute: return {nullptr, -1, 0.16, 0.5};
    case IntervalKind::Wait: return {"waiting", 6, 0.16, 0.2};
    case IntervalKind::Transfer: return {"messages sent", 4, -0.24, 0.2};
    case IntervalKind::Background: return {"background flows sent", 5, -0.38, 0.06};
  }
  KVCAST_ASSERT(false);
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
    const Kind kind = kind_of(i.kind);
    const bool computes = kind.label == nullptr;
    Series& s = series[computes ? i.detail : num_labels + static_cast<std::size_t>(i.kind)];
    s.style = Style::Spans;
    s.height = kind.height;
    s.label = computes ? simulation.labels()[i.detail] : kind.label;
    s.color = computes ? static_cast<int>(i.detail % num_label_colors) : kind.color;
    const double row = devices - 1 - i.rank + kind.offset;
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
