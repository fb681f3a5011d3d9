#include "cli/validate/measured_rows_run.h"

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "cli/frame/interrupt_guard.h"
#include "cli/frame/progress_bar.h"
#include "model/base/stopwatch.h"

namespace kvcast::cli {

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
  fmt::print(stderr,
             "kvcast: interrupted after {} of {} rows; they are in {}, and the same command goes "
             "on from there\n",
             rows.rows_written, rows.num_rows, rows.file.string());
  std::exit(exit_interrupted);
}

}  // namespace kvcast::cli
