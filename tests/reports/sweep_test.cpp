#include "reports/sweep/sweep.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "model/io/weights/catalog.h"
#include "reports/sweep/sweep_plot.h"
#include "tests/near.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

void put(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

/// A folder of its own with a model of two layers, gone with the test.
class Workplace {
 public:
  Workplace() {
    // Thousands of fsync calls: in memory where the system has a folder there.
    const fs::path memory = "/dev/shm";
    std::string name =
        (fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "kvcast_sweep_XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    put(folder_ / "tiny.json", R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 50,
      "intermediate_size": 90, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 3, "max_position_embeddings": 64})");
  }
  ~Workplace() { fs::remove_all(folder_); }

  fs::path operator/(const char* name) const { return folder_ / name; }

  SweepSpec spec() const {
    SweepSpec s;
    s.model = {(folder_ / "tiny.json").string()};
    s.hardware = {"a100-80gb"};
    return s;
  }
  /// 2 methods, 3 batches, 2 prompt lengths, 2 output lengths: 24 rows.
  SweepSpec small_spec() const {
    SweepSpec s = spec();
    s.method = {"plain", "random-prune:keep=0.5"};
    s.batch = {1, 8, 3};
    s.prompt_len = {5, 7};
    s.output_len = {2, 9};
    return s;
  }

 private:
  fs::path folder_;
};

SweepGrid grid_of(const SweepSpec& spec) {
  return SweepGrid(spec, Catalog(KVCAST_SOURCE_DIR "/data"));
}

SweepResult write(const SweepGrid& grid, const fs::path& csv, unsigned threads = 1,
                  Shard shard = {}) {
  SweepOptions options;
  options.csv = csv;
  options.num_threads = threads;
  options.shard = shard;
  return run_sweep(grid, options);
}

/// Stopped before its first row.
SweepResult stop_at_once(const SweepGrid& grid, const fs::path& csv, Shard shard = {}) {
  const std::atomic<bool> stop{true};
  SweepOptions options;
  options.csv = csv;
  options.stop = &stop;
  options.shard = shard;
  options.restart = true;
  return run_sweep(grid, options);
}

/// What `write` leaves behind when it is killed: `text` and the journal of `grid`.
void leave_partial(const SweepGrid& grid, const fs::path& csv, const std::string& text,
                   Shard shard = {}) {
  stop_at_once(grid, csv, shard);
  put(csv.string() + ".partial", text);
}

TEST_CASE("sweep: rows stand in the order of the columns, the last axis fastest") {
  const Workplace w;
  const SweepResult result = write(grid_of(w.small_spec()), w / "a.csv");
  CHECK(result.num_points == 24);
  CHECK(result.rows_written == 24);
  CHECK(result.num_errors == 0);
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 24);
  std::size_t i = 0;
  for (const char* method : {"plain", "random-prune:keep=0.5"}) {
    for (const std::uint64_t batch : {1u, 8u, 3u}) {
      for (const std::uint64_t prompt_len : {5u, 7u}) {
        for (const std::uint64_t output_len : {2u, 9u}) {
          const CsvRow row = table[i++];
          CHECK(row.text("method") == method);
          CHECK(row.whole("batch") == batch);
          CHECK(row.whole("prompt_len") == prompt_len);
          CHECK(row.whole("output_len") == output_len);
          CHECK(row.text("error") == "");
        }
      }
    }
  }
}

TEST_CASE("sweep: a row says what the estimator says about its point") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  write(grid, w / "a.csv");
  const CsvTable table = CsvTable::read(w / "a.csv");
  for (std::size_t i = 0; i < table.size(); ++i) {
    const roofline::Estimator estimator(grid.configuration(i / grid.num_sizes()));
    const CsvRow row = table[i];
    const roofline::Estimate e =
        estimator.at({row.whole("batch"), row.whole("prompt_len"), row.whole("output_len")});
    CHECK(row.number("ttft_s") == e.ttft_s);
    CHECK(row.number("tpot_s") == e.tpot_s);
    CHECK(row.number("prefill_flops") == e.prefill_flops);
    CHECK(row.number("prefill_bytes") == e.prefill_bytes);
    CHECK(row.number("decode_flops_per_token") == e.decode_flops_per_token);
    CHECK(row.number("decode_bytes_per_token") == e.decode_bytes_per_token);
    CHECK(row.number("kv_cache_bytes") == e.kv_cache_bytes);
    CHECK(row.number("weight_bytes") == e.weight_bytes);
    CHECK(row.number("peak_memory_bytes") == e.peak_memory_bytes);
    CHECK(row.text("fits") == (e.fits ? "true" : "false"));
    CHECK(row.text("bound") == roofline::name(e.bound));
    CHECK(row.text("ttft_bound") == roofline::name(e.ttft_bound));
    CHECK(row.text("tpot_bound") == roofline::name(e.tpot_bound));
    CHECK(row.number("ttft_speedup") == e.ttft_speedup);
    CHECK(row.number("tpot_speedup") == e.tpot_speedup);
    CHECK(row.number("kv_cache_ratio") == e.kv_cache_ratio);
  }
}

TEST_CASE("sweep: prompts on several devices have rows, or the reason why not") {
  const Workplace w;
  SweepSpec spec = w.small_spec();
  spec.method = {"kvr:p=6", "tsp:p=3", "kvr:p=2,partition=3/2"};
  const SweepGrid grid = grid_of(spec);
  CHECK(write(grid, w / "a.csv").num_errors == 12);  // 6 devices for 5 tokens; 3/2 of 7 tokens
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 36);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const search::PlacedEstimator estimator(grid.configuration(i / grid.num_sizes()));
    const CsvRow row = table[i];
    const std::string& method = row.text("method");
    const std::uint64_t prompt_len = row.whole("prompt_len");
    CAPTURE(method);
    if (method == "kvr:p=6" && prompt_len == 5) {
      CHECK(row.text("error").find("at least one token per rank") != std::string::npos);
    } else if (method == "kvr:p=2,partition=3/2" && prompt_len == 7) {
      CHECK(row.text("error").find("expected 5, the sum of 3/2") != std::string::npos);
    } else {
      const roofline::Estimate e =
          estimator.at({row.whole("batch"), prompt_len, row.whole("output_len")});
      CHECK(row.number("ttft_s") == e.ttft_s);
      CHECK(row.number("prefill_flops") == e.prefill_flops);
      CHECK(row.number("peak_memory_bytes") == e.peak_memory_bytes);
      CHECK(row.text("ttft_bound") == roofline::name(e.ttft_bound));
      CHECK(row.number("ttft_speedup") == e.ttft_speedup);
    }
  }
}

TEST_CASE("sweep: weights may differ by class; a model's own types are the default") {
  const Workplace w;
  SweepSpec spec = w.spec();
  spec.weight_dtype = {"int4,head=fp16", "q4_k_m"};
  write(grid_of(spec), w / "a.csv");
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 2);
  CHECK(table[0].text("weight_dtype") == "int4,head=fp16");
  CHECK(table[1].text("weight_dtype") == "q4_k_m");
  CHECK(table[0].text("error").empty());
}

TEST_CASE("sweep: every axis of the configuration has its cell") {
  const Workplace w;
  SweepSpec spec = w.spec();
  spec.attention = {"eager", "flash"};
  spec.dtype = {"fp16", "bf16"};
  spec.weight_dtype = {"int4"};
  spec.mode = {"speed-of-light"};
  spec.set = {{"num_key_value_heads", {"1", "6"}}, {"num_hidden_layers", {"3"}}};
  write(grid_of(spec), w / "a.csv");
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 8);
  const CsvRow row = table[6];  // the last but one: tiled, bf16, one key-value head
  CHECK(row.text("attention") == "tiled");
  CHECK(row.text("elementwise") == "fused");
  CHECK(row.text("weight_dtype") == "int4");
  CHECK(row.text("activation_dtype") == "bf16");
  CHECK(row.text("cache_dtype") == "bf16");
  CHECK(row.text("mode") == "speed-of-light");
  CHECK(row.text("set") == "num_key_value_heads=1;num_hidden_layers=3");
  // keys and values, 3 layers, 1 head of 48/6 features, 2 bytes, 1024 + 128 tokens
  CHECK(row.whole("kv_cache_bytes") == 2 * 3 * 8 * 2 * (1024 + 128));
}

TEST_CASE("sweep: other names of a model or device are its catalog name, once") {
  const Workplace w;
  SweepSpec spec = w.spec();
  spec.model = {"EleutherAI/pythia-70m", "pythia-70m", spec.model.front()};
  spec.hardware = {"h100", "H100-SXM", "a100"};
  spec.prompt_len = {5};
  write(grid_of(spec), w / "a.csv");
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 4);
  CHECK(table[0].text("model") == "pythia-70m");
  CHECK(table[0].text("hardware") == "h100-sxm");
  CHECK(table[1].text("hardware") == "a100-80gb");
  CHECK(table[2].text("model") == (w / "tiny.json").string());  // a path stays as it is
}

TEST_CASE("sweep: engines are an axis, and bring their kernels unless these are given") {
  const Workplace w;
  SweepSpec spec = w.spec();
  spec.engine = {"ideal", "pytorch", "vllm:0.6.3"};
  spec.method = {"plain", "kvr:p=2"};
  const SweepGrid grid = grid_of(spec);
  write(grid, w / "a.csv");
  const CsvTable table = CsvTable::read(w / "a.csv");
  REQUIRE(table.size() == 6);
  CHECK(table.columns()[2] == "engine");
  for (std::size_t i = 0; i < 6; ++i) {
    const CsvRow row = table[i];
    CHECK(row.text("engine") == spec.engine[i / 2]);
    const bool eager = row.text("engine") == "pytorch";
    CHECK(row.text("attention") ==
          measure::attention_name(grid.configuration(i).lowering.attention));
    CHECK(row.text("elementwise") == (eager ? "eager" : "fused"));
    if (i == 5) {
      CHECK(row.text("error") ==
            "method kvr:p=2 on several devices: got the engine vllm, expected ideal or pytorch, "
            "because "
            "vllm has no such prefill");
      continue;
    }
    CHECK(row.text("error").empty());
    const search::PlacedEstimator estimator(grid.configuration(i));
    CHECK(row.number("ttft_s") == estimator.at({1, 1024, 128}).ttft_s);
  }
  CHECK(table[4].number("tpot_s") > table[0].number("tpot_s"));

  // Given kernels are all engines'.
  spec.method = {};
  spec.attention = {"tiled", "eager"};
  const SweepGrid chosen = grid_of(spec);
  for (std::uint64_t i = 0; i < 6; ++i) {
    CHECK(chosen.configuration(i).lowering.attention ==
          (i % 2 == 0 ? Kernels::Fused : Kernels::Eager));
  }
  CHECK(chosen.fingerprint() != grid.fingerprint());
}

TEST_CASE("sweep: impossible combinations and overflows are rows with a reason") {
  const Workplace w;
  SweepSpec spec = w.spec();
  spec.model.push_back("t5-small");
  spec.method = {"plain", "random-prune:keep=0.5"};
  spec.set = {{"d_model", {"512"}}};  // a key that the tiny llama does not have
  spec.prompt_len = {16, 1'000'000'000'000'000};
  const SweepResult result = write(grid_of(spec), w / "a.csv");
  CHECK(result.rows_written == 8);
  CHECK(result.num_errors == 7);
  const CsvTable table = CsvTable::read(w / "a.csv");
  const auto error_of_row = [&](std::size_t i) { return table[i].text("error"); };
  CHECK(error_of_row(0).find("unknown config key 'd_model'") != std::string::npos);
  CHECK(table[0].text("ttft_s") == "");
  CHECK(error_of_row(4) == "");
  CHECK(table[4].number("ttft_s") > 0);
  CHECK(error_of_row(5).find("exceeds 64 bits") != std::string::npos);
  CHECK(table[5].whole("prompt_len") == 1'000'000'000'000'000);
  CHECK(error_of_row(6).find("random-prune") != std::string::npos);
}

TEST_CASE("sweep: the number of threads changes nothing") {
  const Workplace w;
  SweepSpec spec = w.small_spec();
  spec.prompt_len = parse_numbers("1..2000", "-p");  // several blocks of each configuration
  const SweepGrid grid = grid_of(spec);
  write(grid, w / "one.csv", 1);
  const std::string one = contents(w / "one.csv");
  for (const unsigned threads : {2u, 5u}) {
    write(grid, w / "many.csv", threads);
    CHECK(contents(w / "many.csv") == one);
  }
}

TEST_CASE("sweep: shards in order, with the header once, are the whole file") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  write(grid, w / "all.csv");
  for (const std::uint64_t count : {2u, 5u, 24u, 30u}) {  // 30: some have no row at all
    std::string joined = sweep_header();
    for (std::uint64_t i = 1; i <= count; ++i) {
      write(grid, w / "part.csv", 1, {i, count});
      const std::string part = contents(w / "part.csv");
      CHECK(part.starts_with(sweep_header()));
      joined += part.substr(sweep_header().size());
    }
    CHECK(joined == contents(w / "all.csv"));
  }
}

TEST_CASE("sweep: I/N wants 1 <= I <= N") {
  CHECK(parse_shard("2/3", "--shard").number == 2);
  CHECK(parse_shard("2/3", "--shard").count == 3);
  for (const char* text : {"", "3/2", "0/2", "1", "1/", "/2", "1/2x", "-1/2", "1/0"}) {
    CHECK_THROWS_AS(parse_shard(text, "--shard"), Error);
  }
}

TEST_CASE("sweep: goes on from any byte at which a kill left the file") {
  const Workplace w;
  SweepSpec spec = w.small_spec();
  spec.batch = {8};
  spec.output_len = {9};
  const SweepGrid grid = grid_of(spec);  // 4 rows of 2 configurations
  write(grid, w / "whole.csv");
  const std::string whole = contents(w / "whole.csv");
  const fs::path csv = w / "cut.csv";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    leave_partial(grid, csv, whole.substr(0, length));
    const SweepResult result = write(grid, csv);
    REQUIRE(contents(csv) == whole);
    CHECK(result.rows_written == 4);
    CHECK_FALSE(fs::exists(csv.string() + ".partial"));
    CHECK_FALSE(fs::exists(csv.string() + ".partial.json"));
    fs::remove(csv);
  }
}

TEST_CASE("sweep: counts the rows and errors of the earlier run") {
  const Workplace w;
  SweepSpec spec = w.small_spec();
  spec.set = {{"num_key_value_heads", {"4", "6"}}};  // 4 does not divide 6 heads
  const SweepGrid grid = grid_of(spec);
  CHECK(write(grid, w / "a.csv").num_errors == 24);
  const std::string whole = contents(w / "a.csv");
  std::size_t end = whole.find('\n') + 1;
  for (int line = 0; line < 30; ++line) end = whole.find('\n', end) + 1;
  leave_partial(grid, w / "b.csv", whole.substr(0, end));
  const SweepResult result = write(grid, w / "b.csv");
  CHECK(result.rows_resumed == 30);
  CHECK(result.rows_written == 48);
  CHECK(result.num_errors == 24);
  CHECK(contents(w / "b.csv") == whole);
}

TEST_CASE("sweep: does not mix rows of two sweeps") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  write(grid, w / "whole.csv");
  const std::string whole = contents(w / "whole.csv");
  const std::string some_rows = whole.substr(0, whole.size() / 2);
  const fs::path csv = w / "a.csv";
  leave_partial(grid, csv, some_rows);
  SweepSpec other = w.small_spec();

  SUBCASE("another grid") { other.batch.push_back(4); }
  SUBCASE("another order") { std::swap(other.batch[0], other.batch[1]); }
  SUBCASE("another model file") {
    std::string config = contents(w / "tiny.json");
    config.replace(config.find("90"), 2, "80");
    put(w / "tiny.json", config);
  }
  SUBCASE("no journal") { fs::remove(csv.string() + ".partial.json"); }
  SUBCASE("a torn journal") { put(csv.string() + ".partial.json", "{\"grid\""); }
  CHECK_THROWS_AS(write(grid_of(other), csv), Error);
  CHECK(contents(csv.string() + ".partial") == some_rows);  // nothing lost by the refusal

  SweepOptions restart;
  restart.csv = csv;
  restart.restart = true;
  const SweepGrid other_grid = grid_of(other);
  CHECK(run_sweep(other_grid, restart).rows_resumed == 0);
  write(other_grid, w / "other.csv");
  CHECK(contents(csv) == contents(w / "other.csv"));
}

TEST_CASE("sweep: does not go on with another shard's rows") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  leave_partial(grid, w / "a.csv", sweep_header(), {1, 2});
  CHECK_THROWS_AS(write(grid, w / "a.csv", 1, {2, 2}), Error);
  CHECK_THROWS_AS(write(grid, w / "a.csv"), Error);
  CHECK(write(grid, w / "a.csv", 1, {1, 2}).rows_written == 12);
}

// The rows of a kvcast with other formulas have the same journal; their last one gives them away.
TEST_CASE("sweep: does not go on after a row that it would write differently") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  write(grid, w / "whole.csv");
  std::string rows = contents(w / "whole.csv").substr(0, 1200);
  rows.resize(rows.rfind('\n') + 1);
  // Speed-ups, ratio, no parts of TTFT, one device, no error.
  const std::string end =
      ",1,1,1"
      ",,,,,,,"
      ",1,,,,"
      ",\n";
  REQUIRE(rows.ends_with(end));
  rows[rows.size() - end.size() + 5] = '2';  // another kv_cache_ratio
  leave_partial(grid, w / "a.csv", rows);
  CHECK_THROWS_AS(write(grid, w / "a.csv"), Error);
  CHECK(contents((w / "a.csv").string() + ".partial") == rows);
}

TEST_CASE("sweep: an early stop keeps its rows under the partial name") {
  const Workplace w;
  SweepSpec spec = w.small_spec();
  spec.prompt_len = parse_numbers("1..5000", "-p");
  const SweepGrid grid = grid_of(spec);
  write(grid, w / "whole.csv");
  const SweepResult stopped = stop_at_once(grid, w / "a.csv");
  CHECK(stopped.stopped);
  CHECK(stopped.rows_written < stopped.num_points);
  CHECK(stopped.partial == (w / "a.csv").string() + ".partial");
  CHECK_FALSE(fs::exists(w / "a.csv"));
  write(grid, w / "a.csv");
  CHECK(contents(w / "a.csv") == contents(w / "whole.csv"));
}

TEST_CASE("sweep: a stream gets the same bytes as a file") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  write(grid, w / "a.csv");
  const int descriptor = ::open((w / "stream.csv").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(descriptor >= 0);
  SweepOptions options;
  options.descriptor = descriptor;
  options.descriptor_name = "stream";
  run_sweep(grid, options);
  ::close(descriptor);
  CHECK(contents(w / "stream.csv") == contents(w / "a.csv"));
}

TEST_CASE("sweep: a full disk and a missing folder are errors of the run, and leave no file") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  const fs::path missing = w / "missing";
  for (const fs::path& csv : {fs::path("/dev/full"), missing / "a.csv"}) {
    try {
      write(grid, csv);
      FAIL("expected an error for " << csv);
    } catch (const Error& e) {
      CHECK(e.fault() == Fault::Run);
      CHECK(std::string(e.what()).find(csv.string()) == 0);
    }
  }
  CHECK(fs::is_character_file("/dev/full"));
  CHECK_THROWS_AS(write(grid, fs::path("/tmp")), Error);
}

TEST_CASE("sweep: the file under the final name stays until the new one is complete") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  put(w / "a.csv", "precious");
  stop_at_once(grid, w / "a.csv");
  CHECK(contents(w / "a.csv") == "precious");
  write(grid, w / "a.csv");
  CHECK(contents(w / "a.csv").starts_with(sweep_header()));
}

TEST_CASE("sweep: the plot has a line for each configuration and batch, up to a limit") {
  const Workplace w;
  const SweepGrid grid = grid_of(w.small_spec());
  const SweepPlot all = sweep_ttft_plot(grid);
  CHECK(all.num_lines == 6);
  CHECK(all.num_possible_lines == 6);
  CHECK(all.plot.series.size() == 6);
  CHECK(all.plot.series[4].label.find("random-prune:keep=0.5, batch 8") != std::string::npos);
  CHECK(sweep_ttft_plot(grid, 4).num_lines == 4);
}

TEST_CASE("sweep: the parts of TTFT are stacked to the whole, a group of bars for each method") {
  const Workplace w;
  SweepSpec s = w.spec();
  s.prompt_len = {40};
  s.method = {"plain", "specprefill:keep=0.25,lookahead=3", "specprefill:keep=0.5,lookahead=3",
              "mlkv:layers=7,heads=3",  // of 2 layers: impossible
              "static-prune:keep=0.5,probe=0.5+kvp:auxiliary=lp-0.50"};
  const SweepPlot drawn = sweep_parts_plot(grid_of(s));
  CHECK(drawn.num_lines == 4);
  CHECK(drawn.num_possible_lines == 5);
  CHECK(drawn.plot.x.names == std::vector<std::string>{"plain", "", "25", "50", "", "50"});
  std::vector<std::string> labels;
  std::map<double, double> sums;
  for (const Series& series : drawn.plot.series) {
    CHECK(series.style == Style::StackedBars);
    labels.push_back(series.label);
    for (const Point& p : series.points) sums[p.x] += p.y;
  }
  CHECK(labels == std::vector<std::string>{"speculator's prefill", "look-ahead", "score", "probe",
                                           "auxiliary model", "predictor", "base model's prefill"});
  CHECK(sums.size() == 4);
  for (const auto& [x, sum] : sums) CHECK(sum == near(1).epsilon(1e-12));
  const std::vector<Point>& base = drawn.plot.series.back().points;
  CHECK(base[0].y == 1);  // plain
  CHECK(base[1].y < base[2].y);
  CHECK(base[1].name.ends_with("specprefill, 25"));
  CHECK(drawn.plot.note.ends_with("static-prune+kvp"));
  s.method = {"mlkv:layers=7,heads=3"};
  CHECK_THROWS_AS(sweep_parts_plot(grid_of(s)), Error);

  s.method = {"kvp:auxiliary=lp-0.25", "kvp:auxiliary=lp-0.50", "static-prune:keep=0.5,probe=0.5",
              "static-prune:keep=0.5"};
  const Plot helpers = sweep_parts_plot(grid_of(s)).plot;
  CHECK(helpers.x.names == std::vector<std::string>{"kvp:auxiliary=lp-0.25", "",
                                                    "kvp:auxiliary=lp-0.50", "", "50", "", "50"});
  std::set<std::string> names;
  for (const Point& p : helpers.series.back().points) names.insert(p.name);
  CHECK(names.size() == 4);
}

}  // namespace
}  // namespace kvcast::reports
