#include "reports/plot/plot_script.h"

#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "reports/plot/plot_annotations.h"
#include "reports/plot/plot_layout.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

constexpr std::array<int, 5> filled_marks = {7, 5, 9, 13, 11};  // gnuplot's "pointtype"

/// A column of the CSV in the axis's unit: "2", "($2/1e9)".
std::string column(int index, double unit) {
  return unit == 1 ? std::to_string(index) : fmt::format("(${}/{:g})", index, unit);
}

/// gnuplot takes a tick's label for a format of its number.
std::string tick_label(const std::string& name) {
  constexpr std::size_t columns = 10;  // beside the axis
  std::string label;
  for (const char c : shortened(printable(name), columns))
    label += c == '%' ? "%%" : std::string(1, c);
  return literal(label);
}

/// Of the names that fit, each at its place: "('device0' 0, 'device1' 1)".
std::string named_ticks(const std::vector<std::string>& names) {
  constexpr std::size_t most = 32;
  const std::size_t stride = (names.size() + most - 1) / most;
  std::string list;
  for (std::size_t i = 0; i < names.size(); i += stride) {
    list += fmt::format("{}{} {}", i == 0 ? "" : ", ", tick_label(names[i]), i);
  }
  return "(" + list + ")";
}

std::string axis_commands(char letter, const View& view, const Axis& axis) {
  std::string commands;
  if (!axis.names.empty()) {
    commands += fmt::format("set {}tics {}\n", letter, named_ticks(axis.names));
  }
  if (view.scale != Scale::Linear) {
    commands += fmt::format("set logscale {} {}\n", letter, view.scale == Scale::Log2 ? 2 : 10);
    commands += fmt::format("set {}tics {}\n", letter, ticks(view));
  }
  return commands + fmt::format("set {}range [{:.6g}:{:.6g}]\n", letter, view.low, view.high);
}

/// What differs between gnuplot's terminals.
struct Look {
  double points = 1;  ///< in the unit of the terminal's font sizes
  std::string font;
  std::string title_font;
  double mark_size = 1;
  double key_spacing = 1;
  double label_offset = 0;      ///< of the x label, in lines
  double key_character_px = 9;  ///< what the terminal takes for a character's width
};

Look look_of(Format format) {
  if (format == Format::Svg) {
    return {4.0 / 3, "sans-serif", "sans-serif Bold", 0.75, 1.0, 0.55, 9.8};
  }
  return {1, "Sans", "Sans:Bold", 1.15, 1.25, 0, 9};
}

std::string terminal_commands(Format format, const Look& look, double height) {
  const std::string common =
      fmt::format("noenhanced size {:g},{:.0f} background '#ffffff' font '{},{:g}'", width_px,
                  height, look.font, 10.5 * look.points);
  if (format == Format::Svg) return "set terminal svg " + common + " rounded\n";
  return "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {\n  set terminal pngcairo " + common +
         " rounded\n} else {\n  set terminal png " + common + "\n}\n";
}

std::string key_entry(const std::string& label) {
  return label.empty() ? "notitle" : "title " + literal(shortened(label, key_columns));
}

/// "using ... with ... title ..." for one series.
std::string drawing(const Plot& plot, std::size_t index, const Layout& layout, const Look& look) {
  const Series& s = plot.series[index];
  const std::size_t place = s.color >= 0 ? static_cast<std::size_t>(s.color) : index;
  const std::string color = fmt::format("lc rgb '{}'", color_of(place));
  const std::string title = key_entry(s.label);
  const std::string x = column(2, plot.x.unit);
  const std::string y = column(3, plot.y.unit);
  if (s.style == Style::Marks) {
    return fmt::format("using {}:{} with points pt {} ps {:g} {} {}", x, y,
                       filled_marks[place % filled_marks.size()], look.mark_size, color, title);
  }
  if (s.style == Style::Spans) {
    return fmt::format(
        "using {0}:3:{0}:{1}:($3-{2:g}):($3+{2:g}) with boxxyerror fs solid 0.9 noborder {3} {4}",
        x, column(4, plot.x.unit), s.height / 2, color, title);
  }
  if (!is_bar(s.style)) {
    const bool dashed = s.style == Style::Dashed || place >= palette.size();
    return fmt::format("using {}:{} with lines lw 2.2 {}{} {}", x, y, dashed ? "dt (9,6) " : "",
                       color, title);
  }
  double from = -half_bar_room(plot);
  double to = -from;
  std::string base = column(4, plot.y.unit);
  std::string top = fmt::format("(($3+$4)/{:g})", plot.y.unit);
  if (s.style == Style::Bars) {
    double before = 0;
    double all = 0;
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      if (plot.series[i].style != Style::Bars) continue;
      before += i < index ? 1 : 0;
      ++all;
    }
    from = std::exchange(to, 0) * (2 * before / all - 1);
    to = half_bar_room(plot) * (2 * (before + 1) / all - 1);
    base = fmt::format("({:g})", layout.y.scale == Scale::Linear ? 0 : layout.y.low);
    top = y;
  }
  const auto edge = [&](double offset) {
    if (plot.x.scale == Scale::Linear) return fmt::format("($2/{:g}{:+.4g})", plot.x.unit, offset);
    return fmt::format("($2/{:g}*2**({:.4g}))", plot.x.unit, offset);
  };
  return fmt::format("using {}:{}:{}:{}:{}:{} with boxxyerror fs solid 0.9 noborder {} {}", x, top,
                     edge(from), edge(to), base, top, color, title);
}

}  // namespace

Format format_of(const std::filesystem::path& picture) {
  if (picture.extension() == ".svg") return Format::Svg;
  if (picture.extension() == ".png") return Format::Png;
  throw Error(picture.string(), "a plot file named '" + picture.filename().string() + "'",
              "a name ending in .svg or .png");
}

std::string script_of(const Plot& plot, const PlotFiles& files) {
  const Format format = format_of(files.picture);
  const Look look = look_of(format);
  const Layout layout = layout_of(plot);
  std::string gp = fmt::format(
      "# Draws {} from {}: run `gnuplot {}` in this folder.\n"
      "reset\nset encoding utf8\n{}set output {}\n"
      "set datafile separator comma\nset datafile commentschars ''\nset datafile missing NaN\n\n",
      printable(files.picture.filename().string()), printable(files.csv.filename().string()),
      printable(files.script.filename().string()), terminal_commands(format, look, layout.height),
      file_literal(files.picture));
  const auto text_line = [&](const std::string& text, double x, double y,
                             const std::string& style) {
    gp += fmt::format("set label {} at screen {:.5f}, screen {:.5f} left {}\n", literal(text),
                      x / width_px, 1 - y / layout.height, style);
  };
  for (std::size_t i = 0; i < layout.title.size(); ++i) {
    text_line(
        layout.title[i], left_px, 26 + 25 * static_cast<double>(i),
        fmt::format("font '{},{:g}' textcolor rgb '#222222'", look.title_font, 13 * look.points));
  }
  for (std::size_t i = 0; i < layout.note.size(); ++i) {
    const double from_below = 14 + 16 * static_cast<double>(layout.note.size() - 1 - i);
    text_line(layout.note[i], left_px, layout.height - from_below,
              fmt::format("font ',{:g}' textcolor rgb '#777777'", 8.5 * look.points));
  }
  gp += fmt::format(
      "set lmargin at screen {:.5f}\nset rmargin at screen {:.5f}\nset tmargin at screen {:.5f}\n"
      "set bmargin at screen {:.5f}\n",
      left_px / width_px, 1 - right_px / width_px, 1 - layout.top / layout.height,
      layout.bottom / layout.height);
  gp += fmt::format(
      "set key at screen {:.5f}, screen {:.5f} left top horizontal Left reverse samplen 2.2 "
      "spacing {:g} width {:.4g} maxcols {} textcolor rgb '#222222'\n",
      (left_px - 8) / width_px,
      1 - (18 + 25 * static_cast<double>(layout.title.size())) / layout.height, look.key_spacing,
      1 - static_cast<double>(layout.longest_key_label) *
              (1 - character_px / look.key_character_px),
      layout.key_entries_a_row);
  gp +=
      "set border 3 lc rgb '#888888' lw 1\n"
      "set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'\n"
      "set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1\n";
  gp += fmt::format("set xlabel {} offset 0,{:g}\n", literal(plot.x.label), look.label_offset);
  // A ylabel would move with the width that the terminal takes the tick labels to have.
  gp += fmt::format("set label {} at screen {:.5f}, screen {:.5f} center rotate by 90\n",
                    literal(plot.y.label), 17 / width_px,
                    (layout.height - layout.top + layout.bottom) / 2 / layout.height);
  gp += axis_commands('x', layout.x, plot.x) + axis_commands('y', layout.y, plot.y);
  gp += annotation_commands(plot, layout, 9.5 * look.points);

  // Each series is a range of rows, counted after the header from 0.
  std::size_t row = 0;
  std::string separator = "\nplot ";
  const std::string data = file_literal(files.csv);
  const auto draw_rows = [&](std::size_t count, const std::string& what) {
    if (count > 0) {
      gp +=
          fmt::format("{}{} skip 1 every ::{}::{} {}", separator, data, row, row + count - 1, what);
      separator = ", \\\n     ";
    }
    row += count;
  };
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    draw_rows(plot.series[s].points.size(), drawing(plot, s, layout, look));
  }
  for (const Level& level : plot.levels) {
    draw_rows(1,
              fmt::format("using ({:.6g}):{}:({:.6g}):(0) with vectors nohead lw 1.8 dt (9,5) lc "
                          "rgb '#222222' {}",
                          layout.x.low, column(3, plot.y.unit), layout.x.high - layout.x.low,
                          key_entry(level.label)));
  }
  return gp + "\n";
}

}  // namespace kvcast::reports
