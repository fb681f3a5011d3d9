#include "cli/measured_rows_run.h"

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "cli/interrupt_guard.h"
#include "cli/progress_bar.h"
#include "model/stopwatch.h"

namespace kvcast::cli {

reports::MeasuredRows run_measured_rows(const Globals& globals,
                                        reports::MeasuredRowsOptions& options,
                                        const std::function<reports::MeasuredRows()>& measure) {
  options.stop = &InterruptGuard::interrupted;
  reports::MeasuredRows rows;
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
