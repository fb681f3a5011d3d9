#include <memory>

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/progress_bar.h"
#include "model/error.h"
#include "model/quantity.h"
#include "model/stopwatch.h"
#include "reports/atomic_file.h"
#include "roofline/calibration.h"

namespace kvcast::cli {
namespace {

struct Options {
  std::string output;
  bool quick = false;
  bool force = false;
  int threads = 0;
};

/// "this-machine" for "results/this-machine.json".
std::string name_of(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return stem.empty() ? "this-machine" : stem;
}

std::string in_units(double value, const std::string& unit) {
  if (unit == "s") return format_quantity(value, Dimension::Seconds);
  return format_quantity(value,
                         unit == "bytes/s" ? Dimension::BytesPerSecond : Dimension::FlopsPerSecond);
}

void run(const Options& o, const Globals& globals) {
  // Opened first: a wrong name is said before the measuring, not after it.
  reports::AtomicFile file(o.output);
  roofline::CalibrationOptions options{.quick = o.quick, .threads = o.threads, .on_step = nullptr};
  roofline::Calibration c;
  {
    ProgressBar bar(globals.quiet);
    const Stopwatch watch;
    options.on_step = [&](std::uint64_t done, std::uint64_t all) {
      bar.draw(done, 0, all, watch.seconds());
    };
    c = roofline::calibrate(options);
  }
  const roofline::Measurement& noisiest = c.noisiest();
  const std::string unrest =
      fmt::format("{}: the medians of the two halves of its rounds are {:.0f} % apart",
                  noisiest.name, 100 * noisiest.unrest());
  if (noisiest.unrest() > roofline::settled && !o.force) {
    throw Error(fmt::format("the machine is too noisy: {}, more than {:.0f} %; try again when it "
                            "is idle, or write the file all the same with --force",
                            unrest, 100 * roofline::settled),
                Fault::Run);
  }
  file.write(roofline::to_json(c, name_of(o.output)));
  file.commit();

  Table table({"measured", "median", "low", "high", "unrest"});
  for (const roofline::Measurement& m : c.measurements) {
    const auto [low, high] = std::minmax_element(m.rounds.begin(), m.rounds.end());
    table.add({m.name, in_units(m.median(), m.unit), in_units(*low, m.unit),
               in_units(*high, m.unit), fmt::format("{:.1f} %", 100 * m.unrest())});
  }
  print_text(fmt::format("{}, {} threads, {} rounds\n{}", c.processor, c.threads,
                         c.measurements.front().rounds.size(), table.text()));
  if (noisiest.unrest() > roofline::settled) globals.warn(unrest);
}

}  // namespace

void add_calibrate(CLI::App& app, const Globals& globals) {
  CLI::App* c = app.add_subcommand(
      "calibrate",
      "Measures this machine and writes a hardware file for estimates of runs on it: fp32, on the "
      "CPU.\n\nExamples:\n"
      "  kvcast calibrate --output this-machine.json\n"
      "  kvcast estimate --model smollm2-135m --hardware this-machine.json --dtype fp32");
  const auto options = std::make_shared<Options>();
  c->add_option("-o,--output", options->output, "the hardware file; its name is the file's")
      ->required();
  c->add_flag("--quick", options->quick, "fewer rounds: under 20 s");
  c->add_flag("--force", options->force, "write the file even when the medians do not settle");
  c->add_option("--threads", options->threads, "threads of the executor; default: all")
      ->check(CLI::PositiveNumber);
  c->callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
