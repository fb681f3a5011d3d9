/// The files of a folder of results, each recognised by what it holds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/io/files/csv_table.h"

namespace kvcast::reports {

enum class ResultKind {
  Json,        ///< what a subcommand printed with --json
  Csv,         ///< rows of sweep, reproduce, validate, choose, ...
  Picture,     ///< SVG or PNG
  PictureCsv,  ///< the points of the picture with the same stem
  Trace,       ///< Chrome trace events, which Perfetto opens
  Other,       ///< listed only
  Unreadable,  ///< should be one of the above, and is not
};

struct ResultFile {
  std::filesystem::path path;  ///< relative to the folder
  ResultKind kind = ResultKind::Other;
  std::string command;            ///< what printed it, as its keys show: "estimate", "sweep"
  std::string reason = {};        ///< why it is Unreadable
  nlohmann::ordered_json json{};  ///< the document, if Json
  std::uintmax_t bytes = 0;
};

/// All files in and below the folder, in order of their paths; hidden ones, symbolic links and
/// `besides` (the report itself) left out. Throws Error when the folder cannot be read or has more
/// than 10,000 files.
std::vector<ResultFile> read_results(const std::filesystem::path& folder,
                                     const std::filesystem::path& besides);

/// The rows of a CSV file; of one above 64 MiB those in its first MiB.
struct ResultRows {
  CsvTable table;
  bool complete = true;
};
/// Throws Error as CsvTable::read does.
ResultRows read_result_rows(const std::filesystem::path& path);

/// All bytes of a file of at most 64 MiB. Throws Error (Fault::Run).
std::string read_result_bytes(const std::filesystem::path& path);

}  // namespace kvcast::reports
