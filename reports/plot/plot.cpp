#include "reports/plot/plot.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "model/base/error.h"
#include "model/base/shell_command.h"
#include "model/io/files/atomic_file.h"
#include "model/io/files/csv_writer.h"
#include "reports/plot/plot_text.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

/// What each stacked bar stands on, point by point of each series.
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

/// A folder for one drawing, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code ec;
    std::string name = (fs::temp_directory_path(ec) / "kvcast-plot-XXXXXX").string();
    if (ec) {
      throw Error("TMPDIR, the folder for temporary files, cannot be used: " + ec.message(),
                  Fault::Run);
    }
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
  // Without the user's ~/.gnuplot, so that a plot looks the same everywhere.
  const ShellRun run =
      run_shell("cd " + shell_quoted(folder.string()) + " && exec gnuplot --default-settings " +
                    shell_quoted("./" + script.filename().string()) + " </dev/null 2>&1",
                picture.string() + ": cannot be drawn", {});
  const std::string failure = run.failure();
  if (failure == "exit status 127") {
    fail(picture, "the program gnuplot is not installed; install the package gnuplot-nox");
  }
  if (failure.starts_with("ended")) fail(picture, "gnuplot was " + failure);
  if (!failure.empty()) fail(picture, "gnuplot says: " + last_line(run.output));
}

/// gnuplot succeeds on a full disk too: a whole picture has its format's own end.
bool is_whole(const std::string& picture) {
  const std::size_t tail = picture.size() - std::min<std::size_t>(picture.size(), 16);
  return picture.find("</svg>", tail) != picture.npos || picture.find("IEND", tail) != picture.npos;
}

std::string file_content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The bytes of the picture that the script draws from the CSV, in a scratch folder of its own:
/// only the names of `files` are used. Throws Error with Fault::Run when gnuplot is not installed
/// or fails.
std::string drawn_picture(const PlotFiles& files, const std::string& csv,
                          const std::string& script) {
  const ScratchFolder scratch;
  write_file(scratch.path() / files.csv.filename(), csv);
  write_file(scratch.path() / files.script.filename(), script);
  run_gnuplot(scratch.path(), files.script, files.picture);
  std::string drawn = file_content(scratch.path() / files.picture.filename());
  if (!is_whole(drawn)) {
    fail(files.picture, "gnuplot left an incomplete picture");
  }
  return drawn;
}

}  // namespace

Series& series_of(std::vector<Series>& list, const std::string& label, Style style) {
  const auto known =
      std::find_if(list.begin(), list.end(), [&](const Series& s) { return s.label == label; });
  return known != list.end() ? *known : list.emplace_back(Series{label, {}, style});
}

void sort_by_x(Series& series) {
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const Point& a, const Point& b) { return a.x < b.x; });
}

fs::path picture_beside(const fs::path& picture, const std::string& suffix) {
  fs::path file = picture;
  return file.replace_filename(picture.stem().string() + suffix + picture.extension().string());
}

PlotFiles plot_files(const fs::path& picture) {
  const std::string name = picture.filename().string();
  if (picture.extension() != ".svg" && picture.extension() != ".png") {
    throw Error(picture.string() + ": expected a file name ending in .svg or .png");
  }
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

void write_plot(const Plot& plot, const fs::path& picture) {
  const PlotFiles files = plot_files(picture);
  const std::string csv = plot_csv(plot);
  const std::string script = plot_script(plot, picture);
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
