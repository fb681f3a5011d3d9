#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "measure/measure_matrix.h"
#include "measure/settled_rounds.h"
#include "model/base/error.h"
#include "model/base/shell_command.h"
#include "model/base/stopwatch.h"
#include "model/execute/machine_probe.h"
#include "roofline/hardware.h"

namespace kvcast::cli {
namespace {

struct Options {
  std::string command;
  std::string hardware;
  double tolerance = 5;  ///< per cent
  unsigned looks_again = measure::most_looks_again;
  bool force = false;
  int threads = 0;
};

void run(const Options& o, const Globals& globals) {
  const roofline::Hardware hardware = roofline::load_hardware(globals.catalog(), o.hardware);
  execute::use_threads(o.threads);
  const auto text = [&](const measure::MachineState& state) {
    return fmt::format("arithmetic at {:.2f} and memory at {:.2f} of {}'s rates", state.compute,
                       state.memory, o.hardware);
  };
  const auto refuse = [&](const measure::MachineState& state, const std::string& when = "") {
    const std::string found =
        fmt::format("{}{}, expected them within {:g} %", text(state), when, o.tolerance);
    if (!o.force) throw Error(found + ", or --force", Fault::Run);
    globals.warn(found);
  };
  measure::Steadiness steadiness = measure::as_calibrated(hardware, o.tolerance);
  steadiness.looks_again = o.looks_again;
  if (!o.force) {
    steadiness.on_lost = [&](const measure::MachineState& state) { refuse(state); };
  }
  std::string output;
  const auto run_command = [&] {
    const Stopwatch watch;
    const ShellRun done =
        run_shell(o.command, "steady", {.most_output = std::numeric_limits<std::size_t>::max()});
    if (const std::string failure = done.failure(); !failure.empty()) {
      throw Error(fmt::format("'{}': {}", o.command, failure), Fault::Run);
    }
    output = done.output;
    return measure::RunSeconds{watch.seconds(), 0};
  };
  const measure::MeasuredRounds measured = measure::measure_rounds(1, run_command, &steadiness);
  if (measured.unsteady > 0) {
    refuse(measured.state(),
           ", means of the looks before and behind the last run of which one was off");
  }
  globals.say(fmt::format("{} before and behind '{}', {} run{} discarded", text(measured.state()),
                          o.command, measured.discarded, measured.discarded == 1 ? "" : "s"));
  print_text(output);
}

}  // namespace

void add_steady(Command app, const Globals& globals) {
  Command c = app.add_subcommand(
      "steady",
      "Runs a command while this machine is as it was calibrated, and prints what it printed: for "
      "benchmarks on a machine that is shared. Arithmetic and memory are looked at before and "
      "behind it; when one is further from the hardware file's rate than --tolerance, the run is "
      "discarded and another one made, twelve times at most.\n\nExamples:\n"
      "  kvcast steady --hardware this-machine.json 'llama-bench -m model.gguf -t 2 -o csv' "
      ">run.csv");
  const auto options = std::make_shared<Options>();
  c.add_option("command", options->command, "a line for sh").required().type_name("COMMAND");
  c.add_option("--hardware", options->hardware, "of this machine, as calibrate writes it")
      .required()
      .type_name("HW");
  c.add_option("--tolerance", options->tolerance, "per cent that rates may differ by")
      .range(1.0, 1e9)  // some thousands take any machine, as tests do
      .type_name("PERCENT")
      .capture_default_str();
  c.add_option("--looks", options->looks_again,
               "looks at a machine in another state, a second apart, before it is given up")
      .capture_default_str();
  c.add_flag("--force", options->force, "print what there is when the machine does not come back");
  c.add_option("--threads", options->threads, "threads that look; 0: all cores")
      .range(0, 1024)
      .type_name("N");
  c.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
