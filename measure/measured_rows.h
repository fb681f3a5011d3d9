/// Measures rows that take seconds each into a CSV. An interrupted run continues after its last
/// row.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace kvcast::measure {

struct MeasuredRowsOptions {
  std::filesystem::path csv;
  bool restart = false;                     ///< discard what an earlier run left
  const std::atomic<bool>* stop = nullptr;  ///< set it to end early, between two passes
  /// Called with the rows in the file, those from an earlier run, and all rows.
  std::function<void(std::uint64_t, std::uint64_t, std::uint64_t)> on_progress = nullptr;

  /// Called from within a row: ends measure_rows when `stop` is set.
  void check_stop() const;
};

struct MeasuredRows {
  std::uint64_t num_rows = 0;
  std::uint64_t rows_written = 0;  ///< in the file now
  std::uint64_t rows_resumed = 0;  ///< of them, by earlier runs
  bool stopped = false;
  std::filesystem::path file;  ///< the CSV, or what there is of it
};

/// Appends row(i), a CSV line, for every i that is not in the file yet; each survives a power cut.
/// `fingerprint` identifies what the rows belong to. Throws Error as SweepFile and `row` do.
MeasuredRows measure_rows(const MeasuredRowsOptions& options, std::string_view header,
                          const std::string& fingerprint, std::uint64_t num_rows,
                          const std::function<std::string(std::uint64_t)>& row);

}  // namespace kvcast::measure
