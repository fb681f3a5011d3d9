#include "reports/sweep/row_sweep.h"

#include <algorithm>
#include <vector>

#include "model/base/stopwatch.h"
#include "model/io/files/sweep_file.h"
#include "simulate/parallel_for.h"

namespace kvcast::reports {

SweepResult run_row_sweep(const RowSweep& s, const SweepOptions& o) {
  const PointRange range = o.shard.of(s.num_points);
  const SweepIdentity identity{s.header, s.fingerprint, range.first, range.last - range.first};
  SweepFile file = o.csv.empty() ? SweepFile(o.descriptor, o.descriptor_name, identity)
                                 : SweepFile(o.csv, identity, o.restart);
  SweepResult result;
  result.num_points = identity.num_points;
  result.rows_resumed = result.rows_written = file.rows_found();
  result.num_errors = file.errors_found();
  const Stopwatch watch;
  // Points take about as long as each other, so a row for each thread at a time keeps their order.
  const std::uint64_t at_once = 4ull * o.num_threads;
  while (result.rows_written < result.num_points && !(o.stop != nullptr && o.stop->load())) {
    const std::uint64_t first = range.first + result.rows_written;
    std::vector<std::string> rows(std::min(at_once, range.last - first));
    simulate::parallel_for(rows.size(), o.num_threads,
                           [&](std::size_t i) { rows[i] = s.row(first + i) + "\n"; });
    for (const std::string& row : rows) {
      file.append(row);
      ++result.rows_written;
      if (!row.ends_with(",\n")) ++result.num_errors;
    }
    file.sync();
    if (o.on_progress) {
      o.on_progress({result.rows_written, result.num_points, result.rows_resumed, watch.seconds()});
    }
  }
  result.stopped = result.rows_written < result.num_points;
  if (result.stopped) {
    result.partial = file.partial().string();
  } else {
    file.finish();
  }
  result.elapsed_s = watch.seconds();
  return result;
}

}  // namespace kvcast::reports
