#include <memory>

#include <fmt/format.h>

#include "cli/frame/interrupt_guard.h"
#include "cli/frame/progress_bar.h"
#include "cli/validate/validate_parts.h"
#include "cli/validate/validate_serving.h"
#include "model/base/error.h"
#include "model/base/stopwatch.h"

namespace kvcast::cli {
namespace {

void run(const ValidateOptions& o, const Globals& globals) {
  if (o.measurements.empty() != o.measure) {
    throw Error(o.measure ? "validate: got both --measurements and --measure, expected one of them"
                          : "validate: expected --measurements FILE or --measure");
  }
  if (o.measure) return validate_measure(o, globals);
  if (o.quick || o.restart || o.force || o.threads != 0 || o.rounds != 0) {
    throw Error("--quick, --restart, --force, --rounds and --threads need --measure");
  }
  for (const auto& [flag, given] :
       {std::pair{"--train", o.train}, std::pair{"--seq-len", !o.seq_len.empty()},
        std::pair{"--recompute", !o.recompute.empty()}}) {
    if (given) throw Error(std::string(flag) + ": needs --measure; rows of --measurements say it");
  }
  validate_measurements(o, globals);
}

}  // namespace

measure::MeasuredRows run_measured_rows(const Globals& globals,
                                        measure::MeasuredRowsOptions& options,
                                        const std::function<measure::MeasuredRows()>& measure) {
  options.stop = &InterruptGuard::interrupted;
  measure::MeasuredRows rows;
  {
    const InterruptGuard guard;
    ProgressBar bar(globals.quiet);
    const Stopwatch watch;
    options.on_progress = [&](std::uint64_t done, std::uint64_t before, std::uint64_t all) {
      bar.draw(done, before, all, watch.seconds());
    };
    rows = measure();
    options.on_progress = nullptr;
  }
  if (!rows.stopped) return rows;
  throw Interrupted{fmt::format(
      "interrupted after {} of {} rows; they are in {}, and the same command goes on from there",
      rows.rows_written, rows.num_rows, rows.file.string())};
}

void add_validate(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "validate",
      "Compare forecasts with measurements.\n\nExamples:\n"
      "  kvcast validate --measurements data/measurements/public_llm_latency.csv\n"
      "  kvcast validate --measurements llama-bench.json --hardware rtx-4090 --json\n"
      "  kvcast validate --measure --quick --hardware this-machine.json --csv validation.csv\n"
      "  kvcast validate --measure --hardware this-machine.json --rank-hardware one-of-two.json "
      "--csv validation.csv");
  command.require_subcommand(0);
  const auto o = std::make_shared<ValidateOptions>();
  o->add_to(command);
  const auto serving = std::make_shared<ServingFlags>();
  serving->add_to(command);
  // The flags of `validate` itself have no meaning for its subcommands.
  command.callback([o, serving, command, &globals] {
    if (command.has_subcommand()) return;
    if (serving->serving) return validate_serving(*o, *serving, globals);
    run(*o, globals);
  });
  add_validate_coverage(command, globals);
  add_validate_kvp(command, globals);
  add_validate_quality(command, globals);
}

}  // namespace kvcast::cli
