/// Sweeps whose rows are made one by one, each from its number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "reports/sweep/sweep.h"

namespace kvcast::reports {

struct RowSweep {
  std::string header;       ///< with its line end
  std::string fingerprint;  ///< changes with what the rows are about
  std::uint64_t num_points = 0;
  /// A line without its end, whose last cell is the reason where there are no results; called from
  /// several threads.
  std::function<std::string(std::uint64_t point)> row;
};

/// Rows in the order of their numbers; resumable, as run_sweep.
SweepResult run_row_sweep(const RowSweep& sweep, const SweepOptions& options);

}  // namespace kvcast::reports
