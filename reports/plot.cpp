#include "reports/plot.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/error.h"
#include "reports/atomic_file.h"
#include "reports/csv_writer.h"

extern char** environ;

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

/// Okabe and Ito 2008, the yellow left out: it is hard to see on white.
constexpr std::array<const char*, 7> palette = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                "#E69F00", "#56B4E9", "#555555"};
constexpr std::array<int, 5> filled_marks = {7, 5, 9, 13, 11};  // gnuplot's "pointtype"

/// The picture's measures in pixels, from its top left corner.
constexpr double width_px = 960;
constexpr double usual_height_px = 600;
constexpr double left_px = 88;
constexpr double right_px = 28;
constexpr double row_px = 21;         // of the key
constexpr double key_sample_px = 62;  // the line or mark before a key's text, and the gap after it
constexpr double character_px = 7.8;  // a mean one, in the font of key and annotations
constexpr double text_height_px = 17;
constexpr std::size_t title_columns = 78;
constexpr std::size_t note_columns = 128;
constexpr std::size_t key_columns = 100;
constexpr std::size_t annotation_columns = 60;

const char* color_of(std::size_t index) { return palette[index % palette.size()]; }

bool is_bar(Style style) { return style == Style::Bars || style == Style::StackedBars; }

bool can_show(double v, Scale scale) {
  return std::isfinite(v) && (scale == Scale::Linear || v > 0);
}

// ---- Text -------------------------------------------------------------------------------------

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::size_t num_characters(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return !is_continuation(c); }));
}

/// The bytes of the UTF-8 sequence that starts the text; 0 if none does.
std::size_t sequence_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t n = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (n == 0 || lead > 0xF4 || text.size() < n) return 0;
  return std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(n),
                     is_continuation)
             ? n
             : 0;
}

/// Printable: line ends and control characters become blanks, bytes that are not UTF-8 U+FFFD.
std::string printable(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t n = sequence_bytes(text);
    const bool control = n == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7F);
    if (n == 0) {
      clean += "\uFFFD";
    } else {
      clean += control ? " " : text.substr(0, n);
    }
    text.remove_prefix(std::max<std::size_t>(n, 1));
  }
  return clean;
}

/// The first `columns` characters of a text, the last one an ellipsis if some were left out.
std::string shortened(const std::string& text, std::size_t columns) {
  if (num_characters(text) <= columns) return text;
  std::size_t end = 0;
  for (std::size_t n = 0; n < columns; ++end) n += is_continuation(text[end]) ? 0U : 1U;
  return text.substr(0, end - 1) + "…";
}

/// Lines of at most `columns` characters, broken at blanks.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t blank = std::min(text.find(' ', begin), text.size());
    const std::string word = shortened(text.substr(begin, blank - begin), columns);
    begin = blank + 1;
    if (word.empty()) continue;
    if (!lines.empty() && num_characters(lines.back()) + 1 + num_characters(word) <= columns) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

/// A gnuplot string. Between single quotes only the quote itself is special.
std::string literal(std::string_view text) {
  std::string q = "'";
  for (const char c : printable(text)) q += c == '\'' ? std::string("''") : std::string(1, c);
  return q + "'";
}

/// A file in gnuplot's working folder. A name such as "<x" or "|x" would start a program.
std::string file_literal(const fs::path& file) {
  const std::string name = file.filename().string();
  const bool plain = std::isalnum(static_cast<unsigned char>(name[0])) != 0;
  return literal(plain ? name : "./" + name);
}

// ---- Axes -------------------------------------------------------------------------------------

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

/// "('1' 1, '' 2 1, ...)", the second number marking a tick without label; nothing on linear axes,
/// where gnuplot's own are good.
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
        labels += add(v, label ? fmt::format("{:g}", v) : "") ? 1 : 0;
      }
    }
    if (labels >= 3) break;
  }
  return "(" + list + ")";
}

// ---- Layout -----------------------------------------------------------------------------------

/// What a stacked bar stands on, point by point of each series.
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

/// Half of the room of all bars at one x: a share of the least distance between two of them, on
/// logarithmic axes of its logarithm to base 2.
double half_bar_room(const Plot& plot) {
  const bool linear = plot.x.scale == Scale::Linear;
  std::vector<double> places;
  for (const Series& s : plot.series) {
    for (const Point& p : s.points) {
      if (!is_bar(s.style) || !can_show(p.x, plot.x.scale)) continue;
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

struct Layout {
  View x;
  View y;
  double height = usual_height_px;
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
std::pair<View, View> views_of(const Plot& plot) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::array<double, 2> x = {infinity, -infinity};
  std::array<double, 2> y = {infinity, -infinity};
  const auto include = [](std::array<double, 2>& range, double v, const Axis& axis) {
    if (!can_show(v, axis.scale)) return;
    range = {std::min(range[0], v / axis.unit), std::max(range[1], v / axis.unit)};
  };
  bool bars = false;
  const auto bases = stack_bases(plot);
  const double half = half_bar_room(plot);
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    const Series& series = plot.series[s];
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      const Point& p = series.points[i];
      if (!can_show(p.x, plot.x.scale) || !can_show(p.y, plot.y.scale)) continue;
      include(x, p.x, plot.x);
      include(y, bases[s][i] + p.y, plot.y);
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
  return {view_of(plot.x.scale, x[0], x[1], false, margin),
          view_of(plot.y.scale, y[0], y[1], bars, y_margin)};
}

Layout layout_of(const Plot& plot) {
  Layout layout;
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

// ---- Annotations ------------------------------------------------------------------------------

struct Box {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool overlaps(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
  bool inside(const Box& o) const {
    return left >= o.left && right <= o.right && top >= o.top && bottom <= o.bottom;
  }
};

Box box_at(double x, double y, double half_width, double half_height) {
  return {x - half_width, y - half_height, x + half_width, y + half_height};
}

/// Small boxes between two points, both ends left out.
void add_segment(std::vector<Box>& boxes, double x0, double y0, double x1, double y1) {
  const double steps = std::ceil(std::hypot(x1 - x0, y1 - y0) / 6);
  for (double k = 1; k < steps; ++k) {
    boxes.push_back(box_at(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps, 2, 2));
  }
}

/// Small boxes along everything drawn as a line or a mark.
std::vector<Box> drawn_boxes(const Plot& plot, const Layout& layout) {
  std::vector<Box> boxes;
  for (const Series& s : plot.series) {
    const bool line = s.style == Style::Line || s.style == Style::Dashed;
    double x0 = no_value;
    double y0 = no_value;
    for (const Point& p : s.points) {
      if (!can_show(p.x, plot.x.scale) || !can_show(p.y, plot.y.scale)) continue;
      const double x = layout.pixel_x(p.x / plot.x.unit);
      const double y = layout.pixel_y(p.y / plot.y.unit);
      boxes.push_back(box_at(x, y, line ? 2 : 6, line ? 2 : 6));
      if (line && !std::isnan(x0)) add_segment(boxes, x0, y0, x, y);
      x0 = x;
      y0 = y;
    }
  }
  return boxes;
}

double num_overlaps(const Box& box, const std::vector<Box>& boxes) {
  return static_cast<double>(
      std::count_if(boxes.begin(), boxes.end(), [&](const Box& b) { return box.overlaps(b); }));
}

/// Where a text stands, and the thin line from its point if it stands away from it.
struct Placement {
  Box box;
  double to_x = 0;
  double to_y = 0;
  std::vector<Box> leader;  ///< empty: none
};

/// The place near (x, y) where a text covers least.
Placement place(double x, double y, std::size_t characters, const Box& area,
                const std::vector<Box>& drawn, const std::vector<Box>& taken) {
  const double half_width = 0.5 * character_px * static_cast<double>(characters);
  const double half_height = 0.5 * text_height_px;
  Placement best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (const double distance : {9.0, 18.0, 30.0, 44.0, 64.0, 90.0}) {
    for (const auto& [dx, dy] : {std::pair(1.0, 0.0),
                                 {-1, 0},
                                 {0, -1},
                                 {0, 1},
                                 {1, -1},
                                 {-1, -1},
                                 {1, 1},
                                 {-1, 1},
                                 {0.5, 1},
                                 {-0.5, 1},
                                 {0.5, -1},
                                 {-0.5, -1}}) {
      Placement p;
      p.box = box_at(x + dx * (distance + half_width), y + dy * (distance + half_height),
                     half_width, half_height);
      p.to_x = std::clamp(x, p.box.left, p.box.right);
      p.to_y = std::clamp(y, p.box.top, p.box.bottom);
      if (std::hypot(p.to_x - x, p.to_y - y) > 14) add_segment(p.leader, x, y, p.to_x, p.to_y);
      const bool crosses = std::any_of(p.leader.begin(), p.leader.end(),
                                       [&](const Box& b) { return num_overlaps(b, taken) > 0; });
      double cost = distance / 10 + 4 * num_overlaps(p.box, drawn) + (crosses ? 100 : 0) +
                    1000 * num_overlaps(p.box, taken) + (p.box.inside(area) ? 0 : 5000);
      for (const Box& b : p.leader) cost += 0.5 * num_overlaps(b, drawn);
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = std::move(p);
    }
  }
  return best;
}

/// gnuplot commands that write the annotations.
std::string annotation_commands(const Plot& plot, const Layout& layout, double font_size) {
  std::string commands;
  std::vector<Box> taken;
  const std::vector<Box> drawn = drawn_boxes(plot, layout);
  const Box area{left_px + 3, layout.top + 3, width_px - 4, layout.height - layout.bottom - 3};
  const auto screen = [&](double x, double y) {
    return fmt::format("screen {:.5f}, screen {:.5f}", x / width_px, 1 - y / layout.height);
  };
  for (const Annotation& a : plot.annotations) {
    if (!can_show(a.x, plot.x.scale) || !can_show(a.y, plot.y.scale)) continue;
    const std::string text = shortened(printable(a.text), annotation_columns);
    const Placement p = place(layout.pixel_x(a.x / plot.x.unit), layout.pixel_y(a.y / plot.y.unit),
                              num_characters(text), area, drawn, taken);
    taken.push_back(p.box);
    taken.insert(taken.end(), p.leader.begin(), p.leader.end());
    commands += fmt::format(
        "set label {} at {} center font ',{:g}' textcolor rgb '{}'\n", literal(text),
        screen((p.box.left + p.box.right) / 2, (p.box.top + p.box.bottom) / 2), font_size,
        a.color < 0 ? "#333333" : color_of(static_cast<std::size_t>(a.color)));
    if (p.leader.empty()) continue;
    commands += fmt::format(
        "set arrow from first {:g}, first {:g} to {} nohead back lc rgb '#aaaaaa' lw 1\n",
        a.x / plot.x.unit, a.y / plot.y.unit, screen(p.to_x, p.to_y));
  }
  return commands;
}

// ---- Script -----------------------------------------------------------------------------------

enum class Format { Svg, Png };

Format format_of(const fs::path& picture) {
  if (picture.extension() == ".svg") return Format::Svg;
  if (picture.extension() == ".png") return Format::Png;
  throw Error(picture.string(), "a plot file named '" + picture.filename().string() + "'",
              "a name ending in .svg or .png");
}

/// A column of the CSV in the axis's unit: "2", "($2/1e9)".
std::string column(int index, double unit) {
  return unit == 1 ? std::to_string(index) : fmt::format("(${}/{:g})", index, unit);
}

std::string axis_commands(char letter, const Axis& axis, const View& view, double label_offset) {
  std::string commands =
      fmt::format("set {}label {} offset 0,{:g}\n", letter, literal(axis.label), label_offset);
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
  gp += axis_commands('x', plot.x, layout.x, look.label_offset) +
        axis_commands('y', plot.y, layout.y, 0);
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

// ---- gnuplot ----------------------------------------------------------------------------------

/// A folder for one drawing, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "kvcast-plot-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(name + ": cannot be created: " + std::strerror(errno), Fault::Run);
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

[[noreturn]] void fail(const fs::path& picture, const std::string& reason) {
  throw Error(picture.string() + ": cannot be drawn: " + reason, Fault::Run);
}

/// The last line that holds anything: gnuplot's message, after the line it is about.
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n\t\r") + 1);
  return printable(text.substr(text.find_last_of('\n') + 1));
}

/// Runs the script in `folder`. Its output is read only for the error.
void run_gnuplot(const fs::path& folder, const fs::path& script, const fs::path& picture) {
  std::array<int, 2> pipe_ends{};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) fail(picture, std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  // Without the user's ~/.gnuplot, so that a plot looks the same everywhere.
  std::array<std::string, 3> words = {"gnuplot", "--default-settings",
                                      "./" + script.filename().string()};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  std::string said;
  std::array<char, 4096> buffer;
  ssize_t n = 0;
  while (error == 0 && (n = ::read(pipe_ends[0], buffer.data(), buffer.size())) != 0) {
    if (n > 0) said.append(buffer.data(), static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) break;
  }
  ::close(pipe_ends[0]);
  if (error == ENOENT) {
    fail(picture, "the program gnuplot is not installed; install the package gnuplot-nox");
  }
  if (error != 0) fail(picture, std::string("gnuplot does not start: ") + std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    fail(picture, "gnuplot was stopped by signal " + std::to_string(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) fail(picture, "gnuplot says: " + last_line(said));
}

/// gnuplot ends with success on a full disk, so the picture's own end is looked at.
bool is_whole(std::string_view picture, Format format) {
  const std::string_view end = format == Format::Svg ? "</svg>" : "IEND";
  const std::size_t tail = std::min<std::size_t>(picture.size(), 16);
  return picture.substr(picture.size() - tail).find(end) != std::string_view::npos;
}

std::string file_content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

PlotFiles plot_files(const fs::path& picture) {
  format_of(picture);
  const std::string name = picture.filename().string();
  if (printable(name) != name) {
    throw Error(printable(picture.string()),
                "a plot file's name with a control character or bytes "
                "that are not UTF-8",
                "a printable name");
  }
  PlotFiles files{picture, picture, picture};
  files.csv.replace_extension(".csv");
  files.script.replace_extension(".gp");
  return files;
}

std::string plot_csv(const Plot& plot) {
  bool names = false;
  bool stacks = false;
  for (const Series& s : plot.series) {
    stacks = stacks || s.style == Style::StackedBars;
    for (const Point& p : s.points) names = names || !p.name.empty();
  }
  const auto label_of = [](const std::string& label) {
    std::string text = printable(label);
    std::replace(text.begin(), text.end(), '"', '\'');
    return text;
  };
  CsvText csv;
  csv.cell("series");
  csv.cell(plot.x.column.empty() ? "x" : plot.x.column);
  csv.cell(plot.y.column.empty() ? "y" : plot.y.column);
  if (stacks) csv.cell("stacked_on");
  if (names) csv.cell("name");
  csv.end_row();
  const auto bases = stack_bases(plot);
  const auto add_row = [&](const std::string& label, const Point& p, double base) {
    csv.cell(label_of(label)).cell(p.x).cell(p.y);
    if (stacks) csv.cell(base);
    if (names) csv.cell(printable(p.name));
    csv.end_row();
  };
  for (std::size_t s = 0; s < plot.series.size(); ++s) {
    for (std::size_t i = 0; i < plot.series[s].points.size(); ++i) {
      add_row(plot.series[s].label, plot.series[s].points[i], bases[s][i]);
    }
  }
  for (const Level& level : plot.levels) add_row(level.label, {no_value, level.y, {}}, 0);
  return csv.text();
}

std::string plot_script(const Plot& plot, const fs::path& picture) {
  return script_of(plot, plot_files(picture));
}

void write_plot(const Plot& plot, const fs::path& picture) {
  const PlotFiles files = plot_files(picture);
  const std::string csv = plot_csv(plot);
  const std::string script = script_of(plot, files);
  std::array<AtomicFile, 3> out = {AtomicFile(files.csv), AtomicFile(files.script),
                                   AtomicFile(files.picture)};
  const ScratchFolder scratch;
  write_file(scratch.path() / files.csv.filename(), csv);
  write_file(scratch.path() / files.script.filename(), script);
  run_gnuplot(scratch.path(), files.script, picture);
  const std::string drawn = file_content(scratch.path() / files.picture.filename());
  if (!is_whole(drawn, format_of(picture))) fail(picture, "gnuplot left an incomplete picture");
  out[0].write(csv);
  out[1].write(script);
  out[2].write(drawn);
  for (AtomicFile& file : out) file.sync();
  for (AtomicFile& file : out) file.commit();
}

}  // namespace kvcast::reports
