/// Plots as values, drawn by gnuplot: a picture, the CSV of its points and the script between them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/io/files/number_text.h"

namespace kvcast::reports {

enum class Scale {
  Linear,
  Log10,
  Log2,  ///< ticks at powers of two, 1024 tokens labelled 1k
};

struct Axis {
  std::string label = {};   ///< with its unit: "KV cache (GB)"
  std::string column = {};  ///< in the CSV, base unit: "kv_cache_bytes"; empty: x or y
  Scale scale = Scale::Linear;
  double unit = 1;  ///< what 1 on the axis is in the points' base unit: 1e9 draws bytes as GB
  double from = no_value;  ///< where the axis begins; smaller points are left out of the picture
  std::vector<std::string> names = {};  ///< shown at 0, 1, 2, ... instead of numbers
};

enum class Style {
  Line,         ///< a prediction
  Dashed,       ///< another one to compare it with
  Marks,        ///< measured points
  Bars,         ///< side by side with the other Bars at the same x
  StackedBars,  ///< on top of the StackedBars before it at the same x
  Spans,        ///< boxes from x to Point::x_end around y; not together with StackedBars
};

/// In the base units that the CSV's columns name.
struct Point {
  double x = no_value;
  double y = no_value;
  std::string name = {};    ///< what the point is, for the CSV; not drawn
  double x_end = no_value;  ///< where a span ends
};

/// Drawn in order, later ones on top. Points that a logarithmic axis cannot show are left out of
/// the picture, never out of the CSV.
struct Series {
  std::string label = {};  ///< in the key, and in the CSV's column "series"
  std::vector<Point> points = {};
  Style style = Style::Line;
  int color = -1;       ///< index into a palette for the colour-blind; -1: the series' own place
  double height = 0.8;  ///< of a span, on the y axis
};

/// A level across the whole plot, such as a capacity; one entry of the key.
struct Level {
  std::string label = {};
  double y = 0;
};

/// What the point (x, y) is: a number beside it, which the note explains.
struct Annotation {
  double x = 0;
  double y = 0;
  std::string text = {};
  int color = -1;  ///< as Series::color; -1: grey
};

struct Plot {
  std::string title = {};
  Axis x = {};
  Axis y = {};
  std::vector<Series> series = {};
  std::vector<Level> levels = {};
  std::vector<Annotation> annotations = {};
  std::string note = {};  ///< below the picture
};

/// The series of that label; where there is none yet, a new one of that style at the end.
Series& series_of(std::vector<Series>& list, const std::string& label, Style style);
/// Points of one x keep their order.
void sort_by_x(Series& series);

/// The files that belong to one picture.
struct PlotFiles {
  std::filesystem::path picture;
  std::filesystem::path csv;     ///< columns series, x, y[, stacked_on | x_end][, name]
  std::filesystem::path script;  ///< `gnuplot FIG.gp` in its folder draws the picture from the CSV
};

/// "DIR/FIG-errors.svg" for "DIR/FIG.svg" and "-errors".
std::filesystem::path picture_beside(const std::filesystem::path& picture,
                                     const std::string& suffix);

/// How the first line of a script begins; the title follows.
inline constexpr const char* script_title = "# title: ";

/// Beside the picture with the same stem. Throws Error unless `picture` ends in .svg or .png.
PlotFiles plot_files(const std::filesystem::path& picture);

/// The texts that `write_plot` writes beside the picture. Throws Error when there is no point that
/// the axes can show.
std::string plot_csv(const Plot& plot);
std::string plot_script(const Plot& plot, const std::filesystem::path& picture);

/// Writes all three files, each completely or not at all; none when gnuplot fails. In the CSV, a
/// quote in a series label becomes an apostrophe, since gnuplot cannot read doubled quotes.
/// Throws Error; with Fault::Run when gnuplot is not installed or fails, or a file cannot be
/// written.
void write_plot(const Plot& plot, const std::filesystem::path& picture);

}  // namespace kvcast::reports
