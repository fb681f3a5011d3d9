#include "reports/plot/plot_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

constexpr double usual_height_px = 600;
constexpr double row_px = 21;         // of the key
constexpr double key_sample_px = 62;  // the line or mark before a key's text, and the gap after it
constexpr std::size_t title_columns = 78;
constexpr std::size_t note_columns = 128;

/// `margin`: of the range, left free at each end.
View view_of(Scale scale, double low, double high, bool from_zero, double margin) {
  if (scale == Scale::Linear) {
    if (low >= 0 && (from_zero || low < 0.6 * high)) {
      return {scale, 0, high > 0 ? (1 + margin) * high : 1};
    }
    const double padding = high > low ? margin * (high - low) : std::max(std::fabs(high), 1.0) / 2;
    return {scale, from_zero ? std::min(low - padding, 0.0) : low - padding, high + padding};
  }
  // At least one power of two, or half a decade, lies within any range of this ratio.
  const double least_ratio = scale == Scale::Log2 ? 4 : 5;
  const double ratio = std::max(high / low, least_ratio);
  const double middle = std::sqrt(low) * std::sqrt(high);
  const double half = std::sqrt(ratio) * std::pow(ratio, margin);
  return {scale, middle / half, middle * half};
}

/// 512, 1k for 1024, 2k, 1M, ...
std::string power_of_two_label(double v) {
  constexpr double kilo = 1024;
  if (v >= kilo * kilo) return fmt::format("{:g}M", v / kilo / kilo);
  if (v >= kilo) return fmt::format("{:g}k", v / kilo);
  return fmt::format("{:g}", v);
}

/// Throws Error when the axes can show no point.
std::pair<View, View> views_of(const Plot& plot) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::array<double, 2> x = {infinity, -infinity};
  std::array<double, 2> y = {infinity, -infinity};
  const auto include = [](std::array<double, 2>& range, double v, const Axis& axis) {
    if (!can_show(v, axis)) return;
    range = {std::min(range[0], v / axis.unit), std::max(range[1], v / axis.unit)};
  };
  bool bars = false;
  const auto bases = stack_bases(plot);
  const double half = half_bar_room(plot);
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    const Series& series = plot.series[s];
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      const Point& p = series.points[i];
      if (!can_show(p.x, plot.x) || !can_show(p.y, plot.y)) continue;
      include(x, p.x, plot.x);
      include(y, bases[s][i] + p.y, plot.y);
      if (series.style == Style::Spans) {
        include(x, p.x_end, plot.x);
        for (const double side : {-0.5, 0.5}) include(y, p.y + side * series.height, plot.y);
      }
      if (!is_bar(series.style)) continue;
      bars = true;
      const bool linear = plot.x.scale == Scale::Linear;
      for (const double side : {-half, half}) {
        include(x, linear ? p.x + side * plot.x.unit : p.x * std::exp2(side), plot.x);
      }
    }
  }
  if (x[0] > x[1]) throw Error("plot '" + printable(plot.title) + "'", "no point to show", "one");
  for (const Level& level : plot.levels) include(y, level.y, plot.y);
  constexpr double margin = 0.05;
  const double y_margin = plot.annotations.empty() ? margin : 0.14;  // room for texts
  std::pair<View, View> views = {view_of(plot.x.scale, x[0], x[1], false, margin),
                                 view_of(plot.y.scale, y[0], y[1], bars, y_margin)};
  if (!std::isnan(plot.x.from)) views.first.low = plot.x.from / plot.x.unit;
  if (!std::isnan(plot.y.from)) views.second.low = plot.y.from / plot.y.unit;
  return views;
}

}  // namespace

bool can_show(double v, const Axis& axis) {
  return std::isfinite(v) && (axis.scale == Scale::Linear || v > 0) && !(v < axis.from);
}

std::string ticks(const View& view) {
  if (view.scale == Scale::Linear) return {};
  std::string list;
  const auto add = [&](double v, const std::string& label) {
    if (v < view.low || v > view.high) return false;
    list +=
        fmt::format("{}'{}' {:g}{}", list.empty() ? "" : ", ", label, v, label.empty() ? " 1" : "");
    return !label.empty();
  };
  const double base = view.scale == Scale::Log2 ? 2 : 10;
  const int first = static_cast<int>(std::floor(std::log(view.low) / std::log(base)));
  const int last = static_cast<int>(std::ceil(std::log(view.high) / std::log(base)));
  if (view.scale == Scale::Log2) {
    const int stride = (last - first) / 16 + 1;
    for (int e = first; e <= last; ++e) {
      const double v = std::exp2(e);
      add(v, e % stride == 0 ? power_of_two_label(v) : "");
    }
    return "(" + list + ")";
  }
  const int stride = (last - first) / 12 + 1;
  const std::array<std::string_view, 3> labelled = {"1", "125", "123456789"};
  for (const std::string_view digits : labelled) {
    list.clear();
    int labels = 0;
    for (int e = first; e <= last; ++e) {
      for (int digit = 1; digit <= 9; ++digit) {
        const double v = digit * std::pow(10, e);
        const bool label =
            digits.find(static_cast<char>('0' + digit)) != digits.npos && e % stride == 0;
        if (!label && stride > 1 && digit > 1) continue;
        // 1e5, not 100000 nor 1e+05, which are too wide beside the axis.
        const std::string number = e < 5 ? fmt::format("{:g}", v) : fmt::format("{}e{}", digit, e);
        labels += add(v, label ? number : "") ? 1 : 0;
      }
    }
    if (labels >= 3) break;
  }
  return "(" + list + ")";
}

std::vector<std::vector<double>> stack_bases(const Plot& plot) {
  std::vector<std::vector<double>> bases(plot.series.size());
  std::map<double, double> tops;
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    for (const Point& p : plot.series[s].points) {
      const bool stacked = plot.series[s].style == Style::StackedBars && std::isfinite(p.y);
      bases[s].push_back(stacked && std::isfinite(p.x) ? std::exchange(tops[p.x], tops[p.x] + p.y)
                                                       : 0);
    }
  }
  return bases;
}

double half_bar_room(const Plot& plot) {
  const bool linear = plot.x.scale == Scale::Linear;
  std::vector<double> places;
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      if (!is_bar(s.style) || !can_show(p.x, plot.x)) continue;
      places.push_back(linear ? p.x / plot.x.unit : std::log2(p.x));
    }
  }
  std::sort(places.begin(), places.end());
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i] > places[i - 1]) least = std::min(least, places[i] - places[i - 1]);
  }
  return 0.36 * (std::isfinite(least) ? least : 1);
}

Layout layout_of(const Plot& plot) {
  Layout layout;
  layout.height = usual_height_px;
  std::tie(layout.x, layout.y) = views_of(plot);
  layout.title = wrapped(printable(plot.title), title_columns);
  layout.note = wrapped(printable(plot.note), note_columns);
  std::size_t entries = 0;
  std::size_t& longest = layout.longest_key_label;
  const auto count = [&](const std::string& label) {
    if (label.empty()) return;
    ++entries;
    longest = std::max(longest, std::min(key_columns, num_characters(label)));
  };
  for (const Series& s : plot.series) {
    if (!s.points.empty()) count(s.label);
  }
  for (const Level& level : plot.levels) count(level.label);
  const double entry_px = key_sample_px + character_px * static_cast<double>(longest);
  layout.key_entries_a_row = std::max<std::size_t>(
      1, static_cast<std::size_t>((width_px - left_px - right_px) / entry_px));
  const std::size_t rows = (entries + layout.key_entries_a_row - 1) / layout.key_entries_a_row;
  layout.top =
      24 + 25 * static_cast<double>(layout.title.size()) + row_px * static_cast<double>(rows);
  layout.bottom = 66 + 16 * static_cast<double>(layout.note.size());
  layout.height += std::max(0.0, layout.top + layout.bottom - 200);
  return layout;
}

}  // namespace kvcast::reports
