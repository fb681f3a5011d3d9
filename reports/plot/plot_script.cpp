// The gnuplot script that draws a plot's picture from its CSV. gnuplot places the axes, the key and
// the texts; the script says what they are.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "reports/plot/plot.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

/// Okabe and Ito 2008, without yellow, which is hard to see on white.
constexpr std::array<const char*, 7> palette = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                "#E69F00", "#56B4E9", "#555555"};
constexpr std::array<int, 5> filled_marks = {7, 5, 9, 13, 11};  // gnuplot's "pointtype"
constexpr double width_px = 960;
constexpr std::size_t key_columns = 80;

const char* color_of(std::size_t index) { return palette[index % palette.size()]; }

bool is_bar(Style style) { return style == Style::Bars || style == Style::StackedBars; }

/// Whether a coordinate in the base unit has a place on the axis.
bool can_show(double v, const Axis& axis) {
  return std::isfinite(v) && (axis.scale == Scale::Linear || v > 0) && !(v < axis.from);
}

void check_has_points(const Plot& plot) {
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      if (can_show(p.x, plot.x) && can_show(p.y, plot.y)) return;
    }
  }
  throw Error("plot '" + printable(plot.title) + "'", "no point to show", "one");
}

/// A column of the CSV in the axis's unit: "2", "($2/1e9)".
std::string column(int index, double unit) {
  return unit == 1 ? std::to_string(index) : fmt::format("(${}/{:g})", index, unit);
}

/// gnuplot strings joined by line ends.
std::string lines_literal(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : ".\"\\n\".") + literal(line);
  return text.empty() ? "''" : text;
}

/// gnuplot takes a tick's label for a format of its number.
std::string tick_label(const std::string& name) {
  constexpr std::size_t columns = 10;  // beside the axis
  std::string label;
  for (const char c : shortened(printable(name), columns)) {
    label += c == '%' ? "%%" : std::string(1, c);
  }
  return literal(label);
}

/// As many names as fit, each at its place: "('device0' 0, 'device1' 1)".
std::string named_ticks(const std::vector<std::string>& names) {
  constexpr std::size_t most = 32;
  const std::size_t stride = (names.size() + most - 1) / most;
  std::string list;
  for (std::size_t i = 0; i < names.size(); i += stride) {
    list += fmt::format("{}{} {}", i == 0 ? "" : ", ", tick_label(names[i]), i);
  }
  return "(" + list + ")";
}

/// "('1' 1, '2' 2, ..., '1k' 1024, ...)"; gnuplot draws those in the axis's range.
std::string power_of_two_ticks() {
  constexpr int most = 40;
  std::string list;
  for (int e = 0; e <= most; ++e) {
    constexpr std::array<const char*, 5> prefixes = {"", "k", "M", "G", "T"};
    list += fmt::format("{}'{}{}' {:.0f}", e == 0 ? "" : ", ", 1 << e % 10,
                        prefixes[static_cast<std::size_t>(e) / 10], std::exp2(e));
  }
  return "(" + list + ")";
}

std::string axis_commands(char letter, const Axis& axis) {
  std::string commands;
  if (!axis.names.empty()) {
    commands += fmt::format("set {}tics {}\n", letter, named_ticks(axis.names));
  }
  if (axis.scale != Scale::Linear) {
    const bool binary = axis.scale == Scale::Log2;
    commands += fmt::format("set logscale {} {}\n", letter, binary ? 2 : 10);
    if (binary) commands += fmt::format("set {}tics {}\n", letter, power_of_two_ticks());
  }
  if (!std::isnan(axis.from)) {
    commands += fmt::format("set {}range [{:.6g}:*]\n", letter, axis.from / axis.unit);
  } else if (axis.scale == Scale::Linear && axis.names.empty()) {
    commands += fmt::format("set {}range [*<0:*]\n", letter);
  }
  return commands;
}

/// gnuplot extends an axis to its next tick, but not where the ticks are a list.
const char* room_beside(const Axis& axis) {
  return axis.scale == Scale::Log2 || !axis.names.empty() ? "graph 0.03, graph 0.03" : "0, 0";
}

/// What differs between gnuplot's terminals.
struct Look {
  double points = 1;  ///< in the unit of the terminal's font sizes
  std::string font;
  std::string title_font;
  double mark_size = 1;
};

Look look_of(const std::filesystem::path& picture) {
  if (picture.extension() == ".svg") return {4.0 / 3, "sans-serif", "sans-serif Bold", 0.75};
  return {1, "Sans", "Sans:Bold", 1.15};
}

std::string terminal_commands(const std::filesystem::path& picture, const Look& look,
                              double height) {
  const std::string common =
      fmt::format("noenhanced size {:g},{:.0f} background '#ffffff' font '{},{:g}'", width_px,
                  height, look.font, 10.5 * look.points);
  if (picture.extension() == ".svg") return "set terminal svg " + common + " rounded\n";
  return "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {\n  set terminal pngcairo " + common +
         " rounded\n} else {\n  set terminal png " + common + "\n}\n";
}

std::string key_entry(const std::string& label) {
  return label.empty() ? "notitle" : "title " + literal(shortened(label, key_columns));
}

/// More than usual for a key of many rows.
double height_px(const Plot& plot) {
  constexpr double sample_px = 62;     // the line or mark before a text, and the gap after it
  constexpr double character_px = 10;  // what the terminals take for a character's width
  std::size_t entries = plot.levels.size();
  std::size_t longest = 1;
  for (const Series& s : plot.series) {
    entries += s.label.empty() || s.points.empty() ? 0U : 1U;
    longest = std::max(longest, std::min(key_columns, num_characters(s.label)));
  }
  const double entry_px = sample_px + character_px * static_cast<double>(longest);
  const double rows =
      std::ceil(static_cast<double>(entries) / std::max(1.0, std::floor(width_px / entry_px)));
  return 600 + 20 * std::max(0.0, rows - 3);
}

/// Half of the room of all bars at one x: a share of the least distance between two of them, on
/// logarithmic axes of its logarithm to base 2.
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
  double least = HUGE_VAL;
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i] > places[i - 1]) least = std::min(least, places[i] - places[i - 1]);
  }
  return 0.36 * (std::isfinite(least) ? least : 1);
}

/// "using ... with ...": bars stand side by side, or on what the CSV says that they are stacked on.
std::string bars(const Plot& plot, std::size_t index) {
  double from = -half_bar_room(plot);
  double to = -from;
  const std::string y = column(3, plot.y.unit);
  std::string base = column(4, plot.y.unit);
  std::string top = fmt::format("(($3+$4)/{:g})", plot.y.unit);
  if (plot.series[index].style == Style::Bars) {
    const auto is_side_by_side = [](const Series& s) { return s.style == Style::Bars; };
    const auto first = plot.series.begin();
    const auto before = static_cast<double>(
        std::count_if(first, first + static_cast<std::ptrdiff_t>(index), is_side_by_side));
    const auto all = static_cast<double>(std::count_if(first, plot.series.end(), is_side_by_side));
    from = std::exchange(to, 0) * (2 * before / all - 1);
    to = half_bar_room(plot) * (2 * (before + 1) / all - 1);
    base = "(0)";
    top = y;
  }
  // A logarithmic axis has no 0: its bars begin far below what it shows.
  if (plot.y.scale != Scale::Linear) base = fmt::format("({} > 0 ? {} : {}*1e-9)", base, base, y);
  const auto edge = [&](double offset) {
    if (plot.x.scale == Scale::Linear) return fmt::format("($2/{:g}{:+.4g})", plot.x.unit, offset);
    return fmt::format("($2/{:g}*2**({:.4g}))", plot.x.unit, offset);
  };
  return fmt::format("using {}:{}:{}:{}:{}:{} with boxxyerror fs solid 0.9 noborder",
                     column(2, plot.x.unit), top, edge(from), edge(to), base, top);
}

/// "using ... with ... title ..." for one series.
std::string drawing(const Plot& plot, std::size_t index, const Look& look) {
  const Series& s = plot.series[index];
  const std::size_t place = s.color >= 0 ? static_cast<std::size_t>(s.color) : index;
  const std::string x = column(2, plot.x.unit);
  const std::string y = column(3, plot.y.unit);
  std::string what;
  if (s.style == Style::Marks) {
    what = fmt::format("using {}:{} with points pt {} ps {:g}", x, y,
                       filled_marks[place % filled_marks.size()], look.mark_size);
  } else if (s.style == Style::Spans) {
    what = fmt::format(
        "using {0}:3:{0}:{1}:($3-{2:g}):($3+{2:g}) with boxxyerror fs solid 0.9 noborder", x,
        column(4, plot.x.unit), s.height / 2);
  } else if (is_bar(s.style)) {
    what = bars(plot, index);
  } else {
    const bool dashed = s.style == Style::Dashed || place >= palette.size();
    what = fmt::format("using {}:{} with lines lw 2.2{}", x, y, dashed ? " dt (9,6)" : "");
  }
  return fmt::format("{} lc rgb '{}' {}", what, color_of(place), key_entry(s.label));
}

}  // namespace

std::string plot_script(const Plot& plot, const std::filesystem::path& picture) {
  constexpr std::size_t title_columns = 78;
  constexpr std::size_t note_columns = 110;
  const PlotFiles files = plot_files(picture);
  check_has_points(plot);
  const Look look = look_of(picture);
  // Texts beside points would cover each other: numbers stand there, and the note explains them.
  std::string labels;
  std::string note;
  std::size_t number = 0;
  for (const Annotation& a : plot.annotations) {
    if (!can_show(a.x, plot.x) || !can_show(a.y, plot.y)) continue;
    note += fmt::format("{}: {}; ", ++number, printable(a.text));
    labels += fmt::format(
        "set label '{}' at first {:g}, first {:g} left offset 0.7,-0.5 textcolor rgb '{}'\n",
        number, a.x / plot.x.unit, a.y / plot.y.unit,
        a.color < 0 ? "#333333" : color_of(static_cast<std::size_t>(a.color)));
  }
  std::vector<std::string> below{printable(plot.x.label)};
  for (std::string& line : wrapped(note + printable(plot.note), note_columns)) {
    below.push_back(std::move(line));
  }
  below.emplace_back();  // keeps the key apart

  std::string gp = fmt::format(
      "{}{}\n# Draws {} from {}: run `gnuplot {}` in this folder.\n"
      "reset\nset encoding utf8\n{}set output {}\n"
      "set datafile separator comma\nset datafile commentschars ''\nset datafile missing NaN\n\n",
      script_title, printable(plot.title), printable(files.picture.filename().string()),
      printable(files.csv.filename().string()), printable(files.script.filename().string()),
      terminal_commands(picture, look, height_px(plot)), file_literal(files.picture));
  gp += fmt::format("set title {} font '{},{:g}' textcolor rgb '#222222'\n",
                    lines_literal(wrapped(printable(plot.title), title_columns)), look.title_font,
                    13 * look.points);
  gp += fmt::format("set xlabel {}\nset ylabel {}\n", lines_literal(below), literal(plot.y.label));
  gp +=
      "set key below left horizontal Left reverse samplen 2.2 spacing 1.2\n"
      "set border 3 lc rgb '#888888' lw 1\n"
      "set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'\n"
      "set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1\n";
  gp += axis_commands('x', plot.x) + axis_commands('y', plot.y);
  gp += fmt::format("set offsets {}, {}\n", room_beside(plot.x), room_beside(plot.y));
  gp += labels;

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
    draw_rows(plot.series[s].points.size(), drawing(plot, s, look));
  }
  // From side to side of the picture, which the axis x2 measures.
  if (!plot.levels.empty()) gp.insert(gp.rfind("\nplot "), "set x2range [0:1]\n");
  for (const Level& level : plot.levels) {
    draw_rows(1, fmt::format("using (0):{}:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) "
                             "lc rgb '#222222' {}",
                             column(3, plot.y.unit), key_entry(level.label)));
  }
  return gp + "\n";
}

}  // namespace kvcast::reports
