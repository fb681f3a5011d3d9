#include "measure/measure_matrix.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "measure/measurements.h"
#include "measure/validation.h"
#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "roofline/hardware_writer.h"
#include "search/placed_estimator.h"
#include "tests/near.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
namespace {

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

/// The rows of a whole run.
CsvTable rows_of(const std::vector<MeasurePoint>& points, const MeasureOptions& o) {
  measure(points, catalog(), o);
  return CsvTable::read(o.csv);
}

roofline::Estimate estimate(const MeasurePoint& point, const std::string& method,
                            const roofline::Hardware& hardware) {
  roofline::Configuration c;
  c.architecture = load_model(catalog(), point.model);
  c.methods = parse_methods(method);
  c.lowering.weights = c.lowering.activations = c.lowering.cache = DType::FP32;
  c.hardware = hardware;
  return search::PlacedEstimator(c).at(point.size);
}

/// Ends a run after so many rows.
struct StopAfter {
  StopAfter(MeasureOptions& o, std::uint64_t rows) {
    o.stop = &stop;
    o.on_progress = [this, rows](std::uint64_t done, std::uint64_t, std::uint64_t) {
      stop = done == rows;
    };
  }
  std::atomic<bool> stop = false;
};

TEST_CASE("matrix: an interrupted one goes on, and its rows stay as they are") {
  const TestFolder folder;
  const std::vector<MeasurePoint> points = measure_matrix(tiny(), catalog());
  REQUIRE(points.size() == 4);
  MeasureOptions first = options(folder / "v.csv");
  const StopAfter two_rows(first, 2);
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
    CHECK(row.number("ttft_relative_error") == near(predicted / row.number("ttft_s") - 1));
  }
  CHECK(table[1].text("prompt_len") == "8");
  CHECK(table[2].text("method") == "random-prune:keep=0.5");
}

// A vocabulary padded less: 48 of the base's 61 ids, which a prompt made up for the base exceeds
// (7919 mod 61 = 50). What tokens mean is no matter of time, and tokenizers are not compared.
TEST_CASE("matrix: prompts are made up of ids that the helper models have too") {
  const TestFolder folder;
  const std::string speculator = (folder / "small.json").string();
  std::string config = contents(KVCAST_SOURCE_DIR "/tests/oracle/llama_mha/config.json");
  const std::string vocab = "\"vocab_size\": 61";
  REQUIRE(config.find(vocab) != std::string::npos);
  config.replace(config.find(vocab), vocab.size(), "\"vocab_size\": 48");
  std::ofstream(speculator) << config;
  MeasureAxes axes = tiny();
  axes.methods = {"specprefill:speculator=" + speculator + ",keep=0.5,lookahead=2"};
  const std::vector<MeasurePoint> points = measure_matrix(axes, catalog());
  REQUIRE(points.size() == 2);
  const CsvTable table = rows_of(points, options(folder / "v.csv"));
  CHECK(table.size() == 2);
  for (const CsvRow& row : table.rows()) {
    CHECK(row.text("error") == "");
    CHECK(row.number("ttft_s") > 0);
  }
}

TEST_CASE("matrix: each weight has its own type where most are of the row's") {
  const Architecture a = load_model(catalog(), KVCAST_SOURCE_DIR "/tests/oracle/packed/gptq");
  const auto of = [&](const WeightTypes& types, const char* name) {
    return types.of(name, 2, 64, &a);
  };
  // GPTQ packs the layers' matrices, not the embedding.
  const WeightTypes packed = weight_types_of(a, DType::INT4_G32);
  CHECK(of(packed, "layers.0.up.weight") == DType::INT4_G32);
  CHECK(of(packed, "embedding.weight") != DType::INT4_G32);
  CHECK(of(weight_types_of(a, DType::Q8_0), "embedding.weight") == DType::Q8_0);
}

TEST_CASE("matrix: runs in the types of the file, in each arithmetic, with each cache") {
  const TestFolder folder;
  MeasureAxes axes = tiny();
  axes.models = {KVCAST_SOURCE_DIR "/tests/oracle/packed/gptq"};
  axes.methods = {"plain"};
  axes.batch = {1};
  axes.prompt_len = {8};
  axes.arithmetic = {execute::Arithmetic::FP32, execute::Arithmetic::INT8};
  axes.caches = {DType::FP32, DType::FP8};
  const std::vector<MeasurePoint> points = measure_matrix(axes, catalog());
  REQUIRE(points.size() == 4);
  MeasureOptions o = options(folder / "v.csv");
  o.hardware.peak_flops_per_second[DType::INT8] = o.hardware.peak_flops_per_second[DType::FP32];
  o.hardware.weight_bandwidth[DType::INT4_G32] = {1e-5, roofline::Source::Measured, "made up", ""};
  o.hardware.int8_weight_bandwidth[DType::INT4_G32] = {1e-4, roofline::Source::Measured, "made up",
                                                       ""};
  const CsvTable table = rows_of(points, o);
  REQUIRE(table.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(table[i].text("error") == "");
    CHECK(table[i].text("weight_dtype") == "int4_g32");
    CHECK(table[i].text("arithmetic") == (i < 2 ? "fp32" : "int8"));
    CHECK(table[i].text("cache_dtype") == (i % 2 == 0 ? "fp32" : "fp8"));
    CHECK(table[i].number("tpot_s") > 0);
  }
  // Reading the weights is slow here, ten times as slow without int8.
  CHECK(table[0].number("predicted_tpot_s") > 5 * table[2].number("predicted_tpot_s"));
  CHECK(table[1].number("predicted_tpot_s") < table[0].number("predicted_tpot_s"));

  // The rows say enough to make the same forecasts again.
  std::ofstream(folder / "hw.json") << roofline::hardware_entries(o.hardware).dump();
  const Validation v =
      validate(read_measurements(folder / "v.csv"), catalog(), {"", (folder / "hw.json").string()});
  REQUIRE(v.cases.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    const char* column = i % 2 == 0 ? "predicted_ttft_s" : "predicted_tpot_s";
    CHECK(v.cases[i].predicted == near(table[i / 2].number(column)).epsilon(1e-5));
  }
}

TEST_CASE("matrix: a base named as its own speculator can have its cache reused") {
  const TestFolder folder;
  MeasureAxes axes = tiny();
  axes.prompt_len = {8};
  const std::string named = "specprefill:speculator=" + axes.models[0] + ",keep=0.5,reuse=kept";
  axes.methods = {"specprefill:keep=0.5,reuse=kept", named};
  const std::vector<MeasurePoint> points = measure_matrix(axes, catalog());
  REQUIRE(points.size() == 2);
  const CsvTable table = rows_of(points, options(folder / "v.csv"));
  REQUIRE(table.size() == 2);
  CHECK(table[1].text("method") == named);
  CHECK(table[1].text("error") == "");
  CHECK(table[1].text("predicted_ttft_s") == table[0].text("predicted_ttft_s"));
}

TEST_CASE("matrix: rows of another hardware file are kept, and the run refused") {
  const TestFolder folder;
  const std::vector<MeasurePoint> points = measure_matrix(tiny(), catalog());
  MeasureOptions first = options(folder / "v.csv");
  const StopAfter one_row(first, 1);
  measure(points, catalog(), first);
  const std::string before = contents(folder / "v.csv.partial");
  MeasureOptions other = options(folder / "v.csv");
  other.hardware.memory_bandwidth.value *= 2;
  CHECK_THROWS_WITH_AS(measure(points, catalog(), other), doctest::Contains("--restart"), Error);
  CHECK(contents(folder / "v.csv.partial") == before);
  other.restart = true;
  const StopAfter at_once(other, 0);
  CHECK(measure(points, catalog(), other).rows_written == 0);
}

/// Ranks of this project's own calibration, whose runs take these times, over and over.
MeasureOptions on_ranks(const std::filesystem::path& csv, std::vector<RunSeconds> times) {
  MeasureOptions o = options(csv);
  o.rounds = 3;
  o.rank_hardware = roofline::load_hardware(
      catalog(), KVCAST_SOURCE_DIR "/reports/studies/kvr-measured/hardware/memory-2.json");
  o.run_ranks = [times = std::move(times), next = std::size_t{0}](const MeasurePoint&) mutable {
    return times[next++ % times.size()];
  };
  return o;
}

MeasureAxes rank_axes() {
  MeasureAxes axes = tiny();
  axes.methods = {"kvr:p=2"};
  return axes;
}

TEST_CASE("matrix: a row of ranks has the medians of its runs and their hardware's forecast") {
  const TestFolder folder;
  MeasureAxes axes = rank_axes();
  axes.prompt_len = {8};
  const auto points = measure_matrix(axes, catalog());
  REQUIRE(points.size() == 1);
  CHECK(num_ranks(points[0]) == 2);
  // The first run is not timed.
  const MeasureOptions o =
      on_ranks(folder / "v.csv", {{99, 99}, {1.2, 0.5}, {1.0, 0.5}, {1.1, 0.5}});
  const CsvTable table = rows_of(points, o);
  REQUIRE(table.size() == 1);
  CHECK(table[0].text("hardware") == "memory-2");
  CHECK(table[0].number("ttft_s") == 1.1);
  CHECK(table[0].number("tpot_s") == 0.5);
  CHECK(table[0].text("rounds") == "3");
  // Quartiles 1.05 and 1.15.
  CHECK(table[0].number("ttft_spread") == near(0.1 / 1.1));
  CHECK(table[0].number("tpot_spread") == 0);
  const roofline::Estimate e = estimate(points[0], "kvr:p=2", *o.rank_hardware);
  CHECK(table[0].number("predicted_ttft_s") == near(e.ttft_s));
  CHECK(table[0].number("predicted_tpot_s") == near(e.tpot_s));
}

TEST_CASE("matrix: lazyllm's row says what its steps took back, and is forecast with it") {
  const TestFolder folder;
  MeasureAxes axes = tiny();
  axes.methods = {"lazyllm:begin=0.8,end=0.3,from=0.1"};
  axes.prompt_len = {40};
  CHECK_THROWS_WITH_AS(measure_matrix(axes, catalog()), doctest::Contains("no valid combination"),
                       Error);
  axes.batch = {1, 2};  // the sequences of a batch run one after another
  const auto points = measure_matrix(axes, catalog());
  REQUIRE(points.size() == 1);
  const MeasureOptions o = options(folder / "v.csv");
  const CsvTable table = rows_of(points, o);
  REQUIRE(table.size() == 1);
  const std::string method = table[0].text("method");
  REQUIRE(method.starts_with(axes.methods[0] + ",revive_first=0."));
  CHECK(method.find(",revive=0.") != std::string::npos);
  const double told = estimate(points[0], method, o.hardware).tpot_s;
  CHECK(table[0].number("predicted_tpot_s") == near(told));
  CHECK(estimate(points[0], axes.methods[0], o.hardware).tpot_s < told);
}

TEST_CASE("matrix: a row that does not settle ends it, or is kept and told where that is asked") {
  const TestFolder folder;
  const auto points = measure_matrix(rank_axes(), catalog());
  REQUIRE(points.size() == 2);
  // A warm-up and 3 rounds of the first row; then 1, 2, 3 seconds in turns.
  std::vector<RunSeconds> times(4, {1, 0.5});
  for (int round = 0; round < 5; ++round) {
    for (const double seconds : {1.0, 2.0, 3.0}) times.push_back({seconds, 0.5});
  }
  try {
    measure(points, catalog(), on_ranks(folder / "v.csv", times));
    FAIL("it ended");
  } catch (const Error& e) {
    CHECK(e.fault() == Fault::Run);
    const std::string line = e.what();
    CHECK(line.find("too noisy: " + points[1].model +
                    " kvr:p=2 tiled, fp32 with a cache in fp32, batch 2, prompt 8: the "
                    "middle half of 3 TTFTs spreads over 50 % of their median, more than 20 %") !=
          std::string::npos);
    CHECK(line.find("--force") != std::string::npos);
  }
  const std::string first = contents(folder / "v.csv.partial");
  CHECK(std::count(first.begin(), first.end(), '\n') == 2);

  // The same again goes on after the first row. A warm-up of 1 second, then 2, 3 and 1.
  std::vector<std::string> told;
  MeasureOptions o = on_ranks(folder / "v.csv", {{1, 0.5}, {2, 0.5}, {3, 0.5}});
  o.on_unsettled = [&](const std::string& row) { told.push_back(row); };
  const MeasuredRows rows = measure(points, catalog(), o);
  CHECK(rows.rows_resumed == 1);
  CHECK(rows.rows_written == 2);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("prompt 8: the middle half of 3 TTFTs") != std::string::npos);
  const CsvTable table = CsvTable::read(folder / "v.csv");
  CHECK(table[1].text("rounds") == "3");
  CHECK(table[1].number("ttft_spread") == near(0.5));
  CHECK(table[1].text("error").empty());
}

TEST_CASE("matrix: ranks are measured where there are some, with both of their methods") {
  MeasureAxes axes;
  axes.quick = true;
  const auto one = measure_matrix(axes, catalog());
  axes.ranks = 2;
  std::map<std::string, int> placed;
  for (const MeasurePoint& p : measure_matrix(axes, catalog())) {
    if (num_ranks(p) > 1) ++placed[p.method];
  }
  // 2 models, 2 kernels, 2 prompts.
  CHECK(placed == std::map<std::string, int>{{"kvr:p=2", 8}, {"tsp:p=2", 8}});
  CHECK(measure_matrix(axes, catalog()).size() == one.size() + 16);
}

TEST_CASE("matrix: rows of other links or threads are kept, and the run refused") {
  const TestFolder folder;
  const auto points = measure_matrix(rank_axes(), catalog());
  MeasureOptions first = on_ranks(folder / "v.csv", {{1, 0.5}});
  const StopAfter one_row(first, 1);
  CHECK(measure(points, catalog(), first).rows_written == 1);
  MeasureOptions other = on_ranks(folder / "v.csv", {{1, 0.5}});
  other.rank_hardware->links.at("mpi").latency.value *= 2;
  CHECK_THROWS_WITH_AS(measure(points, catalog(), other), doctest::Contains("--restart"), Error);
  MeasureOptions threads = on_ranks(folder / "v.csv", {{1, 0.5}});
  threads.threads = 3;
  CHECK_THROWS_WITH_AS(measure(points, catalog(), threads), doctest::Contains("--restart"), Error);
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
}  // namespace kvcast::measure
