#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "cli/frame/mpirun_environment.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/this_machine.h"
#include "cli/run/run_ranks.h"
#include "measure/benchmark_import.h"
#include "measure/calibration.h"
#include "measure/combined_calibration.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "model/io/files/atomic_file.h"

namespace kvcast::cli {
namespace {

using measure::Calibration;
using measure::Measurement;

struct CalibrateOptions {
  std::string output;
  std::string import_file;
  std::string hardware;
  std::vector<std::string> combine;
  bool quick = false;
  bool force = false;
  int rounds = 0;
  int threads = 0;

  /// Whether an option says how to measure.
  bool measures() const { return quick || rounds > 0 || threads > 0; }
};

/// "this-machine" for "results/this-machine.json".
std::string name_of(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return stem.empty() ? "this-machine" : stem;
}

std::string in_units(double value, const std::string& unit) {
  if (unit.empty()) return fmt::format("{:.3g}", value);
  if (unit == "s") return format_quantity(value, Dimension::Seconds);
  return format_quantity(value,
                         unit == "bytes/s" ? Dimension::BytesPerSecond : Dimension::FlopsPerSecond);
}

/// Throws Error above the limit, unless forced; then warns.
void check_noise(double unrest, const std::string& what, const CalibrateOptions& o,
                 const Globals& globals) {
  if (unrest <= measure::settled) return;
  if (o.force) return globals.warn(what);
  throw Error(fmt::format("the machine is too noisy: {}, more than {:.0f} %; try again when it is "
                          "idle, or write the file all the same with --force",
                          what, 100 * measure::settled),
              Fault::Run);
}

std::vector<std::string> row_of(const Measurement& m) {
  return {m.name, in_units(m.median(), m.unit), in_units(m.low(), m.unit),
          in_units(m.high(), m.unit)};
}

std::string measurements_text(const Calibration& c) {
  Table table({"measured", "median", "low", "high", "unrest"});
  for (const auto* list : {&c.measurements, &c.by_threads}) {
    for (const Measurement& m : *list) {
      std::vector<std::string> row = row_of(m);
      row.push_back(fmt::format("{:.1f} %", 100 * m.unrest()));
      table.add(std::move(row));
    }
  }
  return table.text();
}

/// Rows and threads down, shapes of weights across.
std::string matrix_rates_text(const Calibration& c) {
  std::vector<std::string> shapes;
  std::vector<std::pair<std::uint64_t, int>> lines;
  for (const measure::MatrixRate& r : c.matrix_rates) {
    const std::string shape = fmt::format("{}x{}", r.out, r.in);
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    const std::pair line{r.rows, r.threads};
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  std::vector<std::string> header{"product of rows", "threads"};
  header.insert(header.end(), shapes.begin(), shapes.end());
  Table table(header);
  for (const auto& [rows, threads] : lines) {
    std::vector<std::string> cells{std::to_string(rows), std::to_string(threads)};
    for (const std::string& shape : shapes) {
      const auto found = std::find_if(c.matrix_rates.begin(), c.matrix_rates.end(),
                                      [&](const measure::MatrixRate& r) {
                                        return r.rows == rows && r.threads == threads &&
                                               fmt::format("{}x{}", r.out, r.in) == shape;
                                      });
      const bool there = found != c.matrix_rates.end();
      cells.push_back(there ? in_units(found->rate.median(), found->rate.unit) : "");
    }
    table.add(std::move(cells));
  }
  return table.text();
}

/// Of several ranks, only the first one writes and prints.
void measure(const CalibrateOptions& o, const Globals& globals, execute::Messenger* messenger) {
  const bool speaks = messenger == nullptr || messenger->rank() == 0;
  // Opened first, so that a wrong name is reported before the measuring.
  std::optional<AtomicFile> file;
  if (speaks) file.emplace(o.output);
  measure::CalibrationOptions options{.quick = o.quick,
                                      .rounds = o.rounds,
                                      .threads = rank_threads(o.threads),
                                      .messenger = messenger,
                                      .on_step = nullptr};
  Calibration c;
  {
    ProgressBar bar(globals.quiet || !speaks);
    const Stopwatch watch;
    options.on_step = [&](std::uint64_t done, std::uint64_t all) {
      bar.draw(done, 0, all, watch.seconds());
    };
    c = measure::calibrate(options);
  }
  if (!speaks) return;
  const Measurement& noisiest = c.noisiest();
  check_noise(noisiest.unrest(),
              fmt::format("{}: its median, {} of {} rounds from {} to {}, is uncertain by {:.0f} %",
                          noisiest.name, in_units(noisiest.median(), noisiest.unit),
                          noisiest.rounds.size(), in_units(noisiest.low(), noisiest.unit),
                          in_units(noisiest.high(), noisiest.unit), 100 * noisiest.unrest()),
              o, globals);
  file->write(measure::to_json(c, name_of(o.output)));
  file->commit();
  print_text(fmt::format("{}, {} threads{}, {} rounds\n{}\n{}", c.processor, c.threads,
                         c.ranks > 1 ? fmt::format(" on each of {} ranks", c.ranks) : "",
                         c.measurements.front().rounds.size(), measurements_text(c),
                         matrix_rates_text(c)));
}

/// Every rank measures; an error of one ends them all.
void measure_ranks(const CalibrateOptions& o, const Globals& globals) {
  constexpr double limit_s = 600;  // of a round, on the slowest rank
  const auto mpi = execute::MpiMessenger::start(limit_s);
  try {
    measure(o, globals, mpi.get());
  } catch (const Error& e) {
    std::fprintf(stderr, "kvcast: %s\n", e.what());
    std::fflush(stderr);
    mpi->abort(e.fault() == Fault::Run ? 1 : 2);
  }
  mpi->end();
}

void import_file(const CalibrateOptions& o, const Globals& globals) {
  if (o.measures()) {
    throw Error("--import: cannot be combined with --quick, --rounds or --threads");
  }
  std::optional<roofline::Hardware> base;
  if (!o.hardware.empty()) base = roofline::load_hardware(globals.catalog(), o.hardware);
  const measure::ImportedBenchmarks imported =
      measure::import_benchmarks(o.import_file, base ? &*base : nullptr);
  const measure::Benchmark& noisiest = imported.noisiest();
  check_noise(noisiest.spread(),
              fmt::format("{} {} {}: the middle half of its times spreads over {:.0f} % of their "
                          "median",
                          noisiest.name, noisiest.dtype, noisiest.shape, 100 * noisiest.spread()),
              o, globals);
  write_file(o.output, measure::to_json(imported, name_of(o.output)));
  Table table({"benchmark", "dtype", "shape", "rate", "spread"});
  for (const measure::Benchmark& b : imported.rows) {
    const bool latency = b.name == "small_kernel" || b.name == "host_operator";
    const std::string unit = latency ? "s" : b.flops > 0 ? "FLOP/s" : "bytes/s";
    table.add({b.name, b.dtype, b.shape, in_units(latency ? b.median_s : b.rate(), unit),
               fmt::format("{:.1f} %", 100 * b.spread())});
  }
  print_text(fmt::format("{}, {}, {}\n{}", imported.device, imported.software, imported.date,
                         table.text()));
}

void combine_files(const CalibrateOptions& o) {
  if (o.measures() || o.force || !o.import_file.empty() || !o.hardware.empty()) {
    throw Error("--combine: expected no other option but --output");
  }
  const std::vector<std::filesystem::path> files(o.combine.begin(), o.combine.end());
  const measure::CombinedCalibration combined = measure::combine_calibrations(files);
  write_file(o.output, measure::to_json(combined, name_of(o.output), files));
  Table table({"number", "median", "low", "high"});
  for (const Measurement& n : combined.numbers) table.add(row_of(n));
  print_text(table.text());
}

void run_to_output(const CalibrateOptions& o, const Globals& globals) {
  if (!o.combine.empty()) return combine_files(o);
  if (!o.import_file.empty()) return import_file(o, globals);
  if (!o.hardware.empty()) throw Error("--hardware: needs --import FILE.csv");
  if (ranks_of_mpirun() > 1) return measure_ranks(o, globals);
  measure(o, globals, nullptr);
}

/// Throws Error where the file of another device or of ranks would become this machine's.
std::filesystem::path default_output(const CalibrateOptions& o) {
  std::filesystem::path file = this_machine_file();
  const std::string why = !o.import_file.empty()  ? "with --import"
                          : ranks_of_mpirun() > 1 ? "under mpirun"
                          : file.empty()          ? "where HOME is no folder"
                                                  : "";
  if (!why.empty()) throw Error("--output is required " + why);
  std::error_code ec;
  std::filesystem::create_directories(file.parent_path(), ec);
  if (ec) throw Error(file.parent_path().string(), ec.message(), "a folder, or --output FILE.json");
  return file;
}

void run(CalibrateOptions o, const Globals& globals) {
  const bool is_default = o.output.empty();
  if (is_default) o.output = default_output(o);
  run_to_output(o, globals);
  if (is_default) globals.say("this machine, the default of --hardware: " + o.output);
}

}  // namespace

void add_calibrate(Command app, const Globals& globals) {
  Command c = app.add_subcommand(
      "calibrate",
      "Measure this machine and write its hardware file.\n\n"
      "Measures the CPU in fp32. Under mpirun all ranks measure at the same time, and also the "
      "link\n"
      "between them. --import reads GPU micro-benchmarks (tools/gpu_microbenchmarks.py) instead;\n"
      "--combine takes medians of several calibrations.\n\nExamples:\n"
      "  kvcast calibrate\n"
      "  mpirun -n 2 kvcast calibrate --output one-of-two.json\n"
      "  kvcast calibrate --import a100.csv --hardware a100-80gb --output my-a100.json\n"
      "  kvcast calibrate --combine before/here.json after/here.json --output here.json\n"
      "  kvcast estimate --model smollm2-135m --dtype fp32");
  const auto options = std::make_shared<CalibrateOptions>();
  c.add(
       "--output,-o", options->output,
       "hardware file to write; its name without .json is the device's; default: "
       "~/.config/kvcast/this-machine.json (or in XDG_CONFIG_HOME), which estimate and others take "
       "without --hardware")
      .writes();
  c.add("--import FILE.csv", options->import_file,
        "read micro-benchmarks from a CSV instead of measuring");
  c.add("--hardware", options->hardware,
        "with --import: device that provides peaks, sizes and links; default: the file's best "
        "rates are the peaks");
  c.add("--combine FILE.json", options->combine,
        "write the medians of these calibrations of one machine instead of measuring");
  c.add("--quick", options->quick, "fewer rounds and sizes: under a minute");
  c.add("--rounds N", options->rounds, "medians of N rounds; default: 16, with --quick 3")
      .range(1, 1000);
  c.add("--force", options->force, "write the file even if the machine is too noisy");
  c.add("--threads", options->threads).range(0, 1024);
  c.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
