#include "reports/plot/plot.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/csv_writer.h"
#include "reports/plot/gnuplot.h"
#include "reports/plot/plot_layout.h"
#include "reports/plot/plot_script.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {

namespace fs = std::filesystem;

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
  bool spans = false;
  for (const Series& s : plot.series) {
    stacks = stacks || s.style == Style::StackedBars;
    spans = spans || s.style == Style::Spans;
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
  if (spans) csv.cell("end_" + (plot.x.column.empty() ? "x" : plot.x.column));
  if (names) csv.cell("name");
  csv.end_row();
  const auto bases = stack_bases(plot);
  const auto add_row = [&](const std::string& label, const Point& p, double base) {
    csv.cell(label_of(label)).cell(p.x).cell(p.y);
    if (stacks) csv.cell(base);
    if (spans) csv.cell(p.x_end);
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
  const std::string drawn = drawn_picture(files, csv, script);
  out[0].write(csv);
  out[1].write(script);
  out[2].write(drawn);
  for (AtomicFile& file : out) file.sync();
  for (AtomicFile& file : out) file.commit();
}

}  // namespace kvcast::reports
