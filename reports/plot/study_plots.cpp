#include "reports/plot/study_plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/quantity.h"

namespace kvcast::reports {
namespace {

using roofline::BreakdownRow;

struct Prefix {
  std::string_view letter;
  double factor;
};

/// The prefix in which `v` reads best: 2.0e12 as 2 T.
Prefix prefix_of(double v) {
  constexpr std::array<Prefix, 6> prefixes = {
      {{"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1}}};
  for (const Prefix& p : prefixes) {
    if (v >= p.factor) return p;
  }
  return prefixes.back();
}

/// Operators with this share of their pass's time get a label.
constexpr double noticeable_share = 0.03;
constexpr std::size_t most_labels = 5;  // for each pass
/// Operators this near to each other share one label; a ratio, about a mark's width.
constexpr double near = 1.15;
/// Operators slower than this share of the fastest rate, mere latency, would squeeze the others.
constexpr double least_rate = 1e-5;
constexpr int roof_color = 6;  // grey

/// Where an operator lies in the plot.
struct Mark {
  std::string part;  ///< "encoder", ...; empty in the layers of a decoder-only model
  std::string label;
  double intensity = 0;
  double flops_per_second = 0;
  Seconds total;
};

std::string part_of(const roofline::OpGroup& g) {
  return g.phase == "layers" || g.phase == g.label ? "" : g.phase;
}

std::string name_of(const Mark& m) { return m.part.empty() ? m.label : m.part + " " + m.label; }

/// The marks of one pass, the longest-running first.
std::vector<Mark> marks_of(std::span<const BreakdownRow> rows, std::string_view pass) {
  std::vector<Mark> marks;
  for (const BreakdownRow& row : rows) {
    const auto flops = static_cast<double>(row.time.flops.count);
    const double bytes = static_cast<double>(row.time.bytes.count) +
                         static_cast<double>(row.time.bytes_reread.count);
    if (row.pass != pass || flops <= 0 || bytes <= 0 || row.time.total.value <= 0) continue;
    marks.push_back({part_of(row.group), row.group.label, flops / bytes,
                     flops / row.time.total.value, row.total});
  }
  std::stable_sort(marks.begin(), marks.end(),
                   [](const Mark& a, const Mark& b) { return a.total > b.total; });
  return marks;
}

bool are_near(double a, double b) { return std::max(a, b) <= near * std::min(a, b); }

/// "query, key, value", "encoder up, down", or "query, key, value, 3 more".
std::string joined(const std::vector<const Mark*>& marks) {
  constexpr std::size_t most_names = 4;
  const bool all = marks.size() <= most_names;
  const std::size_t shown = all ? marks.size() : most_names - 1;
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const bool same_part = i > 0 && marks[i]->part == marks[i - 1]->part;
    text += (i == 0 ? "" : ", ") + (same_part ? marks[i]->label : name_of(*marks[i]));
  }
  return all ? text : fmt::format("{}, {} more", text, marks.size() - shown);
}

/// Labels of the operators that take most of the pass; neighbours share one.
std::vector<Annotation> labels_of(const std::vector<Mark>& marks, Seconds pass_total, int color) {
  std::vector<std::vector<const Mark*>> places;
  for (const Mark& m : marks) {
    if (m.total / pass_total < noticeable_share) break;
    const auto place = std::find_if(places.begin(), places.end(), [&](const auto& there) {
      return are_near(there[0]->intensity, m.intensity) &&
             are_near(there[0]->flops_per_second, m.flops_per_second);
    });
    if (place == places.end()) {
      if (places.size() < most_labels) places.push_back({&m});
    } else if (std::none_of(place->begin(), place->end(),
                            [&](const Mark* known) { return name_of(*known) == name_of(m); })) {
      place->push_back(&m);
    }
  }
  std::vector<Annotation> labels;
  for (const std::vector<const Mark*>& place : places) {
    labels.push_back({place[0]->intensity, place[0]->flops_per_second, joined(place), color});
  }
  return labels;
}

/// The memory roof up to the ridge point, and the compute roof from there.
std::vector<Point> roof_line(const Roofs& roofs, double low, double high) {
  const double ridge_point = roofs.compute.value / roofs.memory.value;
  std::vector<Point> line;
  if (low < ridge_point) line.push_back({low, low * roofs.memory.value, "memory"});
  line.push_back({ridge_point, roofs.compute.value, "ridge point"});
  if (high > ridge_point) line.push_back({high, roofs.compute.value, "compute"});
  return line;
}

}  // namespace

Plot ttft_plot(std::span<const TtftPoint> points, std::string title) {
  double longest = 0;
  for (const TtftPoint& p : points) longest = std::max(longest, p.ttft_s);
  const bool milliseconds = longest < 1;
  Plot plot{.title = std::move(title),
            .x = {"Prompt length (tokens)", "prompt_len", Scale::Log2},
            .y = {milliseconds ? "Time to first token (ms)" : "Time to first token (s)", "ttft_s",
                  Scale::Log10, milliseconds ? 1e-3 : 1}};
  std::vector<std::string> labels;
  for (const TtftPoint& p : points) {
    auto known = std::find(labels.begin(), labels.end(), p.label);
    if (known == labels.end()) known = labels.insert(known, p.label);
    Series& series = p.measured ? series_of(plot.series, p.label + " (measured)", Style::Marks)
                                : series_of(plot.series, p.label, Style::Line);
    series.color = static_cast<int>(known - labels.begin());
    series.points.push_back({static_cast<double>(p.prompt_len), p.ttft_s, {}});
  }
  for (Series& series : plot.series) sort_by_x(series);
  // Marks after all lines, so that no line hides one.
  std::stable_partition(plot.series.begin(), plot.series.end(),
                        [](const Series& s) { return s.style == Style::Line; });
  return plot;
}

Roofs roofs_of(const roofline::Rates& rates, roofline::Mode mode) {
  return {std::string(name(mode)),
          rates.flops_per_second[static_cast<std::size_t>(RateClass::Matrix)],
          rates.bytes_per_second[static_cast<std::size_t>(roofline::BandwidthClass::Memory)]};
}

Plot roofline_plot(std::span<const Roofs> roofs, std::span<const BreakdownRow> rows,
                   std::string title) {
  std::vector<std::string_view> passes;
  std::map<std::string_view, Seconds> pass_totals;
  for (const BreakdownRow& row : rows) {
    if (pass_totals.count(row.pass) == 0) passes.push_back(row.pass);
    pass_totals[row.pass] += row.total;
  }
  std::vector<std::vector<Mark>> marks;
  double low = 0.5;
  double high = 1000;
  double fastest = 0;
  for (const Roofs& r : roofs) {
    high = std::max(high, 4 * r.compute.value / r.memory.value);
    fastest = std::max(fastest, r.compute.value);
  }
  for (const std::string_view pass : passes) {
    marks.push_back(marks_of(rows, pass));
    for (const Mark& m : marks.back()) {
      low = std::min(low, m.intensity / 1.5);
      high = std::max(high, m.intensity * 1.5);
      fastest = std::max(fastest, m.flops_per_second);
    }
  }
  const Prefix prefix = prefix_of(fastest / 20);  // most operators lie far below the roof
  const double from = least_rate * fastest;
  Plot plot{.title = std::move(title),
            .x = {"Arithmetic intensity (FLOP/byte)", "arithmetic_intensity_flops_per_byte",
                  Scale::Log10},
            .y = {fmt::format("Attainable rate ({}FLOP/s)", prefix.letter), "flops_per_second",
                  Scale::Log10, prefix.factor}};
  for (std::size_t i = 0; i < roofs.size(); ++i) {
    plot.series.push_back(
        {fmt::format("{}: {}, {}", roofs[i].label,
                     format_quantity(roofs[i].compute.value, Dimension::FlopsPerSecond),
                     format_quantity(roofs[i].memory.value, Dimension::BytesPerSecond)),
         roof_line(roofs[i], low, high), i == 0 ? Style::Line : Style::Dashed, roof_color});
  }
  std::size_t num_operators = 0;
  std::size_t num_slow = 0;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const int color = static_cast<int>(i);
    Series series{std::string(passes[i]) + " operators", {}, Style::Marks, color};
    num_operators += marks[i].size();
    for (const Mark& m : marks[i]) {
      series.points.push_back({m.intensity, m.flops_per_second, name_of(m)});
      num_slow += m.flops_per_second < from ? 1 : 0;
    }
    plot.series.push_back(std::move(series));
    for (Annotation& label : labels_of(marks[i], pass_totals[passes[i]], color)) {
      plot.annotations.push_back(std::move(label));
    }
  }
  if (num_slow > 0) {
    plot.y.from = from;
    plot.note =
        fmt::format("Left out of the picture, not of the CSV: {} of {} operators, slower than {}.",
                    num_slow, num_operators, format_quantity(from, Dimension::FlopsPerSecond));
  }
  return plot;
}

Plot memory_plot(std::span<const MemoryPoint> points, std::string title, const std::string& device,
                 double capacity_bytes) {
  double most = capacity_bytes;
  for (const MemoryPoint& p : points) {
    most = std::max(most, p.weight_bytes + p.kv_cache_bytes + p.activation_bytes);
  }
  const Prefix prefix = prefix_of(most);
  Plot plot{.title = std::move(title),
            .x = {"Prompt length (tokens)", "prompt_len", Scale::Log2},
            .y = {fmt::format("Memory ({}B)", prefix.letter), "memory_bytes", Scale::Linear,
                  prefix.factor},
            .series = {{"weights", {}, Style::StackedBars, 0},
                       {"KV cache", {}, Style::StackedBars, 4},
                       {"activations", {}, Style::StackedBars, 2}}};
  for (const MemoryPoint& p : points) {
    const auto x = static_cast<double>(p.prompt_len);
    plot.series[0].points.push_back({x, p.weight_bytes, {}});
    plot.series[1].points.push_back({x, p.kv_cache_bytes, {}});
    plot.series[2].points.push_back({x, p.activation_bytes, {}});
  }
  plot.levels = {
      {fmt::format("capacity of {}: {}", device, format_quantity(capacity_bytes, Dimension::Bytes)),
       capacity_bytes}};
  return plot;
}

namespace {

/// A series of marks for each name. It has the same mark and colour in every plot of the
/// comparisons.
void add_marks(Plot& plot, std::span<const Comparison> comparisons, double Comparison::*y) {
  int names = 0;
  for (const Comparison& c : comparisons) {
    Series& series = series_of(plot.series, c.series, Style::Marks);
    if (series.color < 0) series.color = ++names;  // 0 is the line's
    series.points.push_back({c.reference, c.*y, c.name});
  }
}

}  // namespace

Plot comparison_plot(std::string title, Axis x, Axis y, std::span<const Comparison> comparisons) {
  Plot plot{.title = std::move(title), .x = std::move(x), .y = std::move(y)};
  plot.x.scale = plot.y.scale = Scale::Log10;
  double low = HUGE_VAL;
  double high = 0;
  for (const Comparison& c : comparisons) {
    if (c.reference <= 0) continue;
    low = std::min(low, c.reference);
    high = std::max(high, c.reference);
  }
  if (low < high) plot.series.push_back({"equal", {{low, low}, {high, high}}});
  add_marks(plot, comparisons, &Comparison::ours);
  return plot;
}

Plot comparison_error_plot(std::string title, Axis x, std::string y_label,
                           std::span<const Comparison> comparisons) {
  Plot plot{.title = std::move(title),
            .x = std::move(x),
            .y = {std::move(y_label), "relative_error"},
            .levels = {{"exact", 0}}};
  plot.x.scale = Scale::Log10;
  add_marks(plot, comparisons, &Comparison::relative_error);
  return plot;
}

}  // namespace kvcast::reports
