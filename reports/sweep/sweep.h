/// Evaluates a grid and writes it as CSV: in grid order whatever the number of threads or ranks,
/// resumable after a kill.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "model/execute/messenger.h"
#include "reports/sweep/sweep_blocks.h"
#include "reports/sweep/sweep_grid.h"

namespace kvcast::reports {

/// One contiguous part of a grid; its rows are a file with a header of its own.
struct Shard {
  std::uint64_t number = 1;  ///< from 1
  std::uint64_t count = 1;
  PointRange of(std::uint64_t num_points) const;
};

/// "I/N", 1 <= I <= N. Throws Error starting with `place`.
Shard parse_shard(std::string_view text, std::string_view place);

struct SweepProgress {
  std::uint64_t rows = 0;  ///< safely in the file
  std::uint64_t total_rows = 0;
  std::uint64_t rows_resumed = 0;  ///< of `rows`, by an earlier run
  double elapsed_s = 0;
};

struct SweepOptions {
  std::filesystem::path csv;  ///< empty: `descriptor`
  int descriptor = -1;        ///< an open file, named `descriptor_name` in errors
  std::string descriptor_name;
  Shard shard;
  unsigned num_threads = 1;
  bool restart = false;                                   ///< discard what an earlier run left
  std::function<void(const SweepProgress&)> on_progress;  ///< from the caller's thread
  const std::atomic<bool>* stop = nullptr;                ///< set it to end early
};

struct SweepResult {
  std::uint64_t num_points = 0;
  std::uint64_t rows_written = 0;        ///< in the file now
  std::uint64_t rows_resumed = 0;        ///< of them, by earlier runs
  std::uint64_t num_errors = 0;          ///< rows with a reason in place of results
  std::uint64_t rows_with_rejected = 0;  ///< of servers; of this run
  double elapsed_s = 0;
  bool stopped = false;  ///< early; the rest is done by the same call again
  std::string partial;   ///< where the rows are if so; empty: a stream
};

/// Throws Error with the first row's reason when every row of the grid has one: nothing is worth
/// writing then.
void check_any_possible(const SweepGrid& grid);

/// With `ranks`, all ranks call it with equal arguments; rank 0 writes and returns the result, the
/// others return an empty one. Throws Error as SweepFile does.
SweepResult run_sweep(const SweepGrid& grid, const SweepOptions& options,
                      execute::Messenger* ranks = nullptr);

}  // namespace kvcast::reports
