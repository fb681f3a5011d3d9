#include "reports/measure_matrix.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include "model/error.h"
#include "reports/csv_table.h"
#include "tests/reports/test_folder.h"

namespace kvcast::reports {
namespace {

const Catalog& catalog() {
  static const Catalog c(KVCAST_SOURCE_DIR "/data");
  return c;
}

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

MeasureAxes tiny() {
  MeasureAxes axes;
  axes.models = {KVCAST_SOURCE_DIR "/tests/oracle/llama_mha"};
  axes.methods = {"plain", "random-prune:keep=0.5"};
  axes.attention = {Kernels::Fused};
  axes.batch = {2};
  axes.prompt_len = {4, 8};
  axes.output_len = 3;
  return axes;
}

MeasureOptions options(const std::filesystem::path& csv) {
  MeasureOptions o;
  o.csv = csv;
  o.hardware = roofline::load_hardware(catalog(), "x86-server-cpu");
  o.rounds = 1;
  return o;
}

TEST_CASE("matrix: an interrupted one goes on, and its rows stay as they are") {
  const TestFolder folder;
  const std::vector<MeasurePoint> points = measure_matrix(tiny(), catalog());
  REQUIRE(points.size() == 4);
  std::atomic<bool> stop = false;
  MeasureOptions first = options(folder / "v.csv");
  first.stop = &stop;
  first.on_progress = [&](std::uint64_t done, std::uint64_t, std::uint64_t) { stop = done == 2; };
  const MeasuredRows cut = measure(points, catalog(), first);
  CHECK(cut.stopped);
  CHECK(cut.rows_written == 2);
  CHECK(cut.file == folder / "v.csv.partial");
  const std::string two = contents(cut.file);
  CHECK_FALSE(std::filesystem::exists(folder / "v.csv"));

  // A torn row, as a kill leaves it, is cut off.
  std::ofstream(cut.file, std::ios::app) << "torn,row";
  const MeasuredRows rest = measure(points, catalog(), options(folder / "v.csv"));
  CHECK_FALSE(rest.stopped);
  CHECK(rest.rows_resumed == 2);
  CHECK(rest.rows_written == 4);
  CHECK(contents(folder / "v.csv").starts_with(two));
  CHECK(folder.num_files() == 1);

  const CsvTable table = CsvTable::read(folder / "v.csv");
  REQUIRE(table.size() == 4);
  for (const CsvRow& row : table.rows()) {
    CHECK(row.text("error").empty());
    const double predicted = row.number("predicted_ttft_s");
    CHECK(row.number("ttft_relative_error") ==
          doctest::Approx(predicted / row.number("ttft_s") - 1));
  }
  CHECK(table[1].text("prompt_len") == "8");
  CHECK(table[2].text("method") == "random-prune:keep=0.5");
}

TEST_CASE("matrix: rows of another hardware file are kept, and the run refused") {
  const TestFolder folder;
  const std::vector<MeasurePoint> points = measure_matrix(tiny(), catalog());
  const std::atomic<bool> stop = true;
  MeasureOptions first = options(folder / "v.csv");
  std::atomic<bool> later = false;
  first.stop = &later;
  first.on_progress = [&](std::uint64_t done, std::uint64_t, std::uint64_t) { later = done == 1; };
  measure(points, catalog(), first);
  const std::string before = contents(folder / "v.csv.partial");
  MeasureOptions other = options(folder / "v.csv");
  other.hardware.memory_bandwidth.value *= 2;
  CHECK_THROWS_WITH_AS(measure(points, catalog(), other), doctest::Contains("--restart"), Error);
  CHECK(contents(folder / "v.csv.partial") == before);
  other.restart = true;
  other.stop = &stop;
  CHECK(measure(points, catalog(), other).rows_written == 0);
}

TEST_CASE("matrix: the default has every kind of method, and only what can exist") {
  const std::vector<MeasurePoint> points = measure_matrix({}, catalog());
  std::set<std::string> methods;
  std::set<std::string> models;
  for (const MeasurePoint& p : points) {
    methods.insert(p.method.substr(0, p.method.find(':')));
    models.insert(p.model);
    CHECK(p.size.batch * p.size.prompt_len <= 2048);
  }
  CHECK(models == std::set<std::string>{"pythia-160m", "pythia-410m", "smollm2-135m",
                                        "smollm2-360m", "tinyllama-1.1b"});
  for (const char* method : {"plain", "slim", "kvp", "specprefill", "random-prune", "mlkv"}) {
    CAPTURE(method);
    CHECK(methods.contains(method));
  }
  MeasureAxes quick;
  quick.quick = true;
  CHECK(measure_matrix(quick, catalog()).size() * 3 < points.size());
}

}  // namespace
}  // namespace kvcast::reports
