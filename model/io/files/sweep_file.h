/// A CSV file that grows row by row and survives `kill -9`.
///
/// Rows are appended to FILE.partial; FILE.partial.json says which sweep they belong to. When the
/// last row is there, FILE.partial becomes FILE by one rename. A later run finds the complete lines
/// of FILE.partial, cuts a torn last one and goes on after them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvcast {

/// What the rows in a partial file belong to.
struct SweepIdentity {
  std::string header;  ///< first line of the CSV, with its line end
  std::string grid;    ///< SweepGrid::fingerprint
  std::uint64_t first_point = 0;
  std::uint64_t num_points = 0;  ///< and so of rows, when the file is complete
};

class SweepFile {
 public:
  /// Opens FILE.partial and keeps its rows if they are of the same sweep. A FILE that is no regular
  /// file (a device, a pipe) is written directly and cannot be resumed.
  /// Throws Error: rows of another sweep (unless `restart`, which discards them), another process
  /// at work on the same file, a folder that cannot be written.
  SweepFile(const std::filesystem::path& file, const SweepIdentity& identity, bool restart);
  /// Writes to an open descriptor that errors call `name`.
  SweepFile(int descriptor, std::string name, const SweepIdentity& identity);
  ~SweepFile();
  SweepFile(const SweepFile&) = delete;
  SweepFile& operator=(const SweepFile&) = delete;

  /// Complete rows found when it was opened, those of them with an error, and the last of them.
  std::uint64_t rows_found() const { return rows_found_; }
  std::uint64_t errors_found() const { return errors_found_; }
  const std::string& last_row_found() const { return last_row_found_; }
  bool can_resume() const { return !partial_.empty(); }
  const std::filesystem::path& partial() const { return partial_; }

  /// Complete lines. Throws Error (Fault::Run) when the disk is full, as all below do.
  void append(std::string_view lines);
  /// Rows appended so far survive a power cut.
  void sync();
  /// Gives the file its name.
  void finish();
  /// Takes away what there is of it: for a request that turns out to be wrong before its first row.
  void discard();

 private:
  void open_partial();
  void keep_or_discard(bool restart);
  bool journal_matches() const;
  void write_journal() const;
  void find_rows();
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  std::filesystem::path partial_;  ///< empty: written directly
  std::filesystem::path journal_;
  SweepIdentity identity_;
  std::string name_;
  int descriptor_ = -1;
  bool owns_descriptor_ = true;
  bool has_rows_ = false;
  std::uint64_t rows_found_ = 0;
  std::uint64_t errors_found_ = 0;
  std::string last_row_found_;
};

}  // namespace kvcast
