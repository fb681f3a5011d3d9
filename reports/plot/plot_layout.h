/// Where a plot's parts go: what its axes show, and the room for title, key and note.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "reports/plot/plot.h"

namespace kvcast::reports {

/// Okabe and Ito 2008, the yellow left out: it is hard to see on white.
inline constexpr std::array<const char*, 7> palette = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                       "#E69F00", "#56B4E9", "#555555"};

/// Of the palette, which starts again after its last colour.
inline const char* color_of(std::size_t index) { return palette[index % palette.size()]; }

/// The picture's measures in pixels, from its top left corner.
inline constexpr double width_px = 960;
inline constexpr double left_px = 92;
inline constexpr double right_px = 28;
inline constexpr double character_px = 7.8;  // a mean one, in the font of key and annotations
inline constexpr std::size_t key_columns = 100;

inline bool is_bar(Style style) { return style == Style::Bars || style == Style::StackedBars; }

/// Whether a coordinate in the base unit has a place on the axis.
bool can_show(double v, const Axis& axis);

/// What an axis shows, in its own unit.
struct View {
  Scale scale = Scale::Linear;
  double low = 0;
  double high = 1;

  /// 0 at `low`, 1 at `high`.
  double position(double v) const {
    if (scale == Scale::Linear) return (v - low) / (high - low);
    return std::log(v / low) / std::log(high / low);
  }
  double at(double position) const {
    if (scale == Scale::Linear) return low + position * (high - low);
    return low * std::pow(high / low, position);
  }
};

/// "('1' 1, '' 2 1, ...)", the second number marking a tick without label; nothing on linear axes,
/// where gnuplot's own are good.
std::string ticks(const View& view);

/// What a stacked bar stands on, point by point of each series.
std::vector<std::vector<double>> stack_bases(const Plot& plot);

/// Half of the room of all bars at one x: a share of the least distance between two of them, on
/// logarithmic axes of its logarithm to base 2.
double half_bar_room(const Plot& plot);

/// The whole picture, in pixels.
struct Layout {
  View x;
  View y;
  double height = 0;
  double top = 0;     ///< of the plot's area, from above
  double bottom = 0;  ///< from below
  std::vector<std::string> title;
  std::vector<std::string> note;
  std::size_t key_entries_a_row = 1;
  std::size_t longest_key_label = 0;

  double pixel_x(double v) const {
    return left_px + x.position(v) * (width_px - left_px - right_px);
  }
  double pixel_y(double v) const { return top + (1 - y.position(v)) * (height - top - bottom); }
};

/// Throws Error when the axes can show no point.
Layout layout_of(const Plot& plot);

}  // namespace kvcast::reports
