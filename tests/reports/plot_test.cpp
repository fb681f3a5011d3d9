#include "reports/plot/plot.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/study_plots.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

/// Changes PATH for a scope, so that another gnuplot, or none, is found.
class SearchPath {
 public:
  explicit SearchPath(const std::string& path) : before_(std::getenv("PATH")) {
    ::setenv("PATH", path.c_str(), 1);
  }
  ~SearchPath() { ::setenv("PATH", before_.c_str(), 1); }
  SearchPath(const SearchPath&) = delete;
  SearchPath& operator=(const SearchPath&) = delete;

 private:
  std::string before_;
};

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What a user does with the script.
int redraw(const TestFolder& folder, const std::string& script) {
  const std::string command =
      "cd '" + folder.path().string() + "' && gnuplot '" + script + "' 2> stderr.txt";
  return std::system(command.c_str());
}

template <typename Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  FAIL("no error");
  return Error("");
}

/// Marks, a line, a level and a label; one point that a logarithmic axis cannot show.
Plot small_plot() {
  return {.title = "TTFT",
          .x = {"Prompt length (tokens)", "prompt_len", Scale::Log2},
          .y = {"TTFT (ms)", "ttft_s", Scale::Log10, 1e-3},
          .series = {{"predicted, fp16", {{1024, 0.25}, {2048, 0.5}, {8192, 2}}},
                     {"measured", {{1024, 0.3}, {2048, 0}, {4096, 1.1, "odd"}}, Style::Marks}},
          .levels = {{"SLO", 1.5}},
          .annotations = {{4096, 1.1, "odd one"}}};
}

roofline::BreakdownRow operator_row(std::string pass, std::string label, std::uint64_t flops,
                                    std::uint64_t bytes, double total_s, std::uint64_t count) {
  roofline::BreakdownRow row;
  row.pass = std::move(pass);
  row.group.label = std::move(label);
  row.group.phase = "layers";
  row.time.flops = {flops};
  row.time.bytes = {bytes};
  row.time.total = {total_s};
  row.count = count;
  row.total = static_cast<double>(count) * row.time.total;
  return row;
}

}  // namespace

TEST_CASE("plot: the CSV beside the picture holds every point") {
  const TestFolder folder;
  write_plot(small_plot(), folder / "fig.svg");
  CHECK(content(folder / "fig.csv") ==
        "series,prompt_len,ttft_s,name\n"
        "\"predicted, fp16\",1024,0.25,\n"
        "\"predicted, fp16\",2048,0.5,\n"
        "\"predicted, fp16\",8192,2,\n"
        "measured,1024,0.3,\n"
        "measured,2048,0,\n"
        "measured,4096,1.1,odd\n"
        "SLO,,1.5,\n");
  CHECK(folder.num_files() == 3);
}

TEST_CASE("plot: the script draws the same picture again from the CSV alone") {
  for (const char* name : {"fig.svg", "fig.png"}) {
    CAPTURE(name);
    const TestFolder folder;
    write_plot(small_plot(), folder / name);
    const std::string picture = content(folder / name);
    REQUIRE(picture.size() > 1000);
    fs::remove(folder / name);
    REQUIRE(redraw(folder, "fig.gp") == 0);
    CHECK(content(folder / name) == picture);

    // Only the CSV holds the numbers: another number, another picture.
    std::string csv = content(folder / "fig.csv");
    csv.replace(csv.find("0.25"), 4, "0.35");
    write_file(folder / "fig.csv", csv);
    REQUIRE(redraw(folder, "fig.gp") == 0);
    CHECK(content(folder / name) != picture);
  }
}

TEST_CASE("plot: texts may hold any characters and appear as they are") {
  const TestFolder folder;
  const std::string odd = R"(a_{b}^c it's "q" `date` @x $y %d #h <&> back\)";
  const std::string drawn = R"(a_{b}^c it's "q" `date` @x $y %d #h &lt;&amp;> back\)";
  Plot plot = small_plot();
  plot.title = odd;
  plot.x.label = odd;
  plot.y.label = odd;
  plot.note = odd;
  plot.series[0].label = "line of " + odd;
  plot.series[1].label = "marks of " + odd;
  plot.series[1].points[0].name = odd;
  plot.levels[0].label = "level of " + odd;
  plot.annotations[0].text = odd;
  write_plot(plot, folder / "fig.svg");
  const std::string picture = content(folder / "fig.svg");
  for (const char* before : {">", "line of ", "marks of ", "level of "}) {
    CHECK(has(picture, before + drawn + "</text>"));
  }
  // gnuplot cannot read doubled quotes in a column before the numbers.
  CHECK(has(content(folder / "fig.csv"), "line of a_{b}^c it's 'q' `date`"));

  // The rows of odd series are read: without them the marks would be missing.
  Plot plain = plot;
  plain.series[1].points.clear();
  write_plot(plain, folder / "plain.svg");
  CHECK(content(folder / "plain.svg").size() < picture.size());
}

TEST_CASE("plot: control characters and broken UTF-8 do not reach the picture") {
  const TestFolder folder;
  Plot plot = small_plot();
  plot.title = "two\nlines\x01 \xff and ∞";
  plot.series[0].label = "tab\tnewline\n\xc3";
  write_plot(plot, folder / "fig.svg");
  CHECK(has(content(folder / "fig.svg"), ">two lines \uFFFD and ∞<"));
  CHECK(has(content(folder / "fig.csv"), "\ntab newline \uFFFD,1024,"));
}

TEST_CASE("plot: token axes have ticks at powers of two, labelled 1k, 2k, 4k") {
  const std::string script = plot_script(small_plot(), "fig.svg");
  CHECK(has(script, "set logscale x 2\n"));
  CHECK(has(script, "set xtics ('1' 1, '2' 2, "));
  CHECK(has(script, "'512' 512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, "));
}

TEST_CASE("plot: a file name that gnuplot would take for a command is a file name") {
  for (const char* name :
       {"|touch pwned; .svg", "<touch pwned.svg", "it's $HOME `x`.svg", "-v.svg", "~x.svg"}) {
    CAPTURE(name);
    const TestFolder folder;
    write_plot(small_plot(), folder / name);
    CHECK(fs::exists(folder / name));
    CHECK(folder.num_files() == 3);
  }
  const TestFolder folder;
  CHECK(error_of([&] { write_plot(small_plot(), folder / "a\nb.svg"); }).fault() == Fault::Request);
}

TEST_CASE("plot: stacked bars stand on what the series before them reach at the same x") {
  const Plot plot{.title = "Memory",
                  .series = {{"weights", {{1, 10}, {2, 10}}, Style::StackedBars},
                             {"cache", {{1, 3}, {2, 6}}, Style::StackedBars},
                             {"activations", {{2, 1}}, Style::StackedBars}}};
  CHECK(plot_csv(plot) ==
        "series,x,y,stacked_on\n"
        "weights,1,10,0\nweights,2,10,0\n"
        "cache,1,3,10\ncache,2,6,10\n"
        "activations,2,1,16\n");
}

TEST_CASE("plot: points below the start of an axis leave the picture but not the CSV") {
  Plot plot = small_plot();
  plot.y.from = 0.4;  // s, drawn as 400 ms; the least point is at 250 ms
  CHECK(has(plot_script(plot, "fig.svg"), "set yrange [400:"));
  CHECK(plot_csv(plot) == plot_csv(small_plot()));
}

TEST_CASE("plot: annotations are numbers, which the note explains: no text covers another") {
  Plot plot = small_plot();
  plot.annotations = {{4096, 1.1, "odd one"}, {4096, 0, "nowhere"}, {1024, 0.3, "even one"}};
  plot.note = "the note";
  const std::string script = plot_script(plot, "fig.svg");
  CHECK(has(script, "set label '1' at first 4096, first 1100 left"));
  CHECK(has(script, "set label '2' at first 1024, first 300 left"));
  CHECK(has(script, ".'1: odd one; 2: even one; the note'."));
}

TEST_CASE("plot: every style draws on every scale") {
  const TestFolder folder;
  for (const Scale scale : {Scale::Linear, Scale::Log10, Scale::Log2}) {
    for (const Style style :
         {Style::Line, Style::Dashed, Style::Marks, Style::Bars, Style::StackedBars}) {
      Plot plot{.title = "t", .x = {"x", "", scale}, .y = {"y", "", scale}};
      plot.series = {{"a", {{3, 5}}, style}, {"b", {{3, 2}}, style}};
      CHECK_NOTHROW(write_plot(plot, folder / "one_x.svg"));
      plot.series[0].points.push_back({7, 9});
      CHECK_NOTHROW(write_plot(plot, folder / "two_x.svg"));
    }
  }
}

TEST_CASE("plot: a plot without a point that its axes can show is an error of the request") {
  const TestFolder folder;
  Plot plot = small_plot();
  plot.series = {{"only zeros", {{1024, 0}, {2048, 0}}}};
  CHECK(error_of([&] { write_plot(plot, folder / "fig.svg"); }).fault() == Fault::Request);
  plot.series.clear();
  CHECK(error_of([&] { write_plot(plot, folder / "fig.svg"); }).fault() == Fault::Request);
  CHECK(folder.num_files() == 0);
}

TEST_CASE("plot: a picture is an .svg or a .png") {
  const Error e = error_of([] { write_plot(small_plot(), "/tmp/fig.pdf"); });
  CHECK(e.fault() == Fault::Request);
  CHECK(std::string(e.what()) == "/tmp/fig.pdf: expected a file name ending in .svg or .png");
}

TEST_CASE("plot: a missing gnuplot is an error of the run that names its package") {
  const TestFolder folder;
  const SearchPath none(folder.path().string());
  const Error e = error_of([&] { write_plot(small_plot(), folder / "fig.svg"); });
  CHECK(e.fault() == Fault::Run);
  CHECK(has(e.what(), "gnuplot-nox"));
  CHECK(folder.num_files() == 0);
}

TEST_CASE("plot: when gnuplot fails, the files of before stay and its reason is told") {
  const TestFolder programs;
  const TestFolder folder;
  write_file(folder / "fig.csv", "old");
  const auto fake_gnuplot = [&](const std::string& body) {
    write_file(programs / "gnuplot", "#!/bin/sh\n" + body + "\n");
    fs::permissions(programs / "gnuplot", fs::perms::owner_all);
    const SearchPath path(programs.path().string() + ":/usr/bin:/bin");
    const Error e = error_of([&] { write_plot(small_plot(), folder / "fig.svg"); });
    CHECK(e.fault() == Fault::Run);
    CHECK(content(folder / "fig.csv") == "old");
    CHECK(folder.num_files() == 1);
    return std::string(e.what());
  };
  CHECK(has(fake_gnuplot("printf '  plot x\\n  ^\\nline 3: odd thing\\n\\n' >&2; exit 1"),
            "gnuplot says: line 3: odd thing"));
  CHECK(has(fake_gnuplot("echo '<svg>' > fig.svg"), "incomplete"));
  CHECK(has(fake_gnuplot("kill -9 $$"), "signal 9"));
}

TEST_CASE("plot: a missing folder is found before anything is drawn") {
  const SearchPath none("/nonexistent");
  const Error e = error_of([] { write_plot(small_plot(), "/nonexistent/fig.svg"); });
  CHECK(e.fault() == Fault::Request);
  CHECK(has(e.what(), "the folder /nonexistent does not exist"));
}

TEST_CASE("ttft plot: a line for each configuration, marks of its colour where it was measured") {
  const Plot plot = ttft_plot(std::vector<TtftPoint>{
      {"a", 2048, 0.4}, {"b", 1024, 3}, {"a", 1024, 0.2}, {"b", 1500, 5, true}});
  REQUIRE(plot.series.size() == 3);
  CHECK(plot.series[0].label == "a");
  CHECK(plot.series[0].points[0].x == 1024);  // sorted
  CHECK(plot.series[0].points[1].y == 0.4);
  CHECK(plot.series[1].label == "b");
  CHECK(plot.series[2].label == "b (measured)");
  CHECK(plot.series[2].style == Style::Marks);
  CHECK(plot.series[2].color == plot.series[1].color);
  CHECK(plot.y.label == "Time to first token (s)");
}

TEST_CASE("roofline plot: roofs meet at the ridge point, operators lie under them") {
  // 100 FLOP/s and 20 B/s meet at 5 FLOP/byte. The product: 800 FLOPs and 80 bytes are 10
  // FLOP/byte, 800 FLOPs in 8 s are 100 FLOP/s. Copies have no FLOPs and no place.
  const std::vector<roofline::BreakdownRow> rows = {
      operator_row("prefill", "gate", 800, 80, 8, 2), operator_row("prefill", "up", 800, 80, 8, 2),
      operator_row("prefill", "norm", 4, 8, 0.4, 1), operator_row("prefill", "copy", 0, 80, 4, 1),
      operator_row("decode", "gate", 8, 8, 0.4, 2)};
  const Plot plot = roofline_plot(std::vector<Roofs>{{"device", {100}, {20}}}, rows);
  REQUIRE(plot.series.size() == 3);
  REQUIRE(plot.series[0].points.size() == 3);
  CHECK(plot.series[0].points[0].y == near(20 * plot.series[0].points[0].x));
  CHECK(plot.series[0].points[1].x == 5);
  CHECK(plot.series[0].points[1].y == 100);
  CHECK(plot.series[0].points[2].y == 100);
  CHECK(plot.series[1].label == "prefill operators");
  REQUIRE(plot.series[1].points.size() == 3);
  CHECK(plot.series[1].points[0].x == 10);
  CHECK(plot.series[1].points[0].y == 100);
  CHECK(plot.series[2].label == "decode operators");
  CHECK(plot.series[2].points.size() == 1);
  // The norm takes 0.4 of 36.4 s, too little for a label; gate and up lie at one place.
  REQUIRE(plot.annotations.size() == 2);
  CHECK(plot.annotations[0].text == "gate, up");
  CHECK(plot.annotations[1].text == "gate");
}

TEST_CASE("memory plot: parts are stacked and the capacity is a level") {
  const Plot plot =
      memory_plot(std::vector<MemoryPoint>{{1024, 14e9, 1e9, 2e9}}, "Memory", "l4", 24e9);
  REQUIRE(plot.series.size() == 3);
  CHECK(plot.y.label == "Memory (GB)");
  REQUIRE(plot.levels.size() == 1);
  CHECK(plot.levels[0].label == "capacity of l4: 24 GB");
  CHECK(plot_csv(plot) ==
        "series,prompt_len,memory_bytes,stacked_on\n"
        "weights,1024,14000000000,0\n"
        "KV cache,1024,1000000000,14000000000\n"
        "activations,1024,2000000000,15000000000\n"
        "capacity of l4: 24 GB,,24000000000,0\n");
}

}  // namespace kvcast::reports
