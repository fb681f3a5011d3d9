/// A command's answer is JSON; its table and its CSV show the same rows.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/frame/command.h"

namespace kvcast::cli {

using nlohmann::ordered_json;

/// A value as a person reads it.
using Words = std::function<std::string(const ordered_json& value)>;

/// "1.83 ms", "16.2 MB", "2.04 TB/s"
std::string in_seconds(const ordered_json& value);
std::string in_bytes(const ordered_json& value);
std::string in_bytes_per_second(const ordered_json& value);
/// "6.0 %" and "+6.0 %" of 0.06
std::string in_percent(const ordered_json& value);
std::string in_signed_percent(const ordered_json& value);
/// fmt's: in("{:.2f}x"), of `scale` times the number.
Words in(const std::string& format, double scale = 1);
/// `text` where the value is true.
Words if_true(const std::string& text);

struct Column {
  std::string heading;
  /// A key of the row, or "/a/b" for a nested one. "#" is the row's number, from 1, left out for a
  /// row with a "reason" against it. Empty: the whole row.
  std::string key;
  /// How a value is shown; without it text as it is and numbers as in JSON. Null and missing values
  /// are empty cells.
  Words words = {};
};

/// Rows are a list of objects.
std::string table_text(const std::vector<Column>& columns, const ordered_json& rows);
/// A column without a heading is headed by its key. `path` "-" is standard output. Throws Error.
void write_rows_csv(const std::string& path, const std::vector<Column>& columns,
                    const ordered_json& rows);
/// Columns headed by their keys.
std::vector<Column> columns_of(const std::vector<std::string>& keys);

/// The file to write; "-" is standard output.
std::string csv_target(const std::string& csv);

/// With `--csv -` only the rows go to standard output. `flags`: those that would print there too,
/// and whether they were given. Throws Error naming the first that was.
void check_rows_alone(const std::string& csv,
                      const std::vector<std::pair<const char*, bool>>& flags);

/// `--json` and `--csv` of a command whose answer has rows.
struct RowsOutput {
  bool json = false;
  std::string csv;

  void add_to(Command command, const std::string& csv_help = {});
  /// Throws Error where rows and --json, or one of `others`, would print to standard output.
  void check(std::vector<std::pair<const char*, bool>> others = {}) const;
  bool csv_is_stdout() const { return csv == "-"; }
};

/// A list of objects made of a list of anything.
template <typename List, typename ToJson>
ordered_json rows_of(const List& list, const ToJson& to_json) {
  ordered_json rows = ordered_json::array();
  for (const auto& entry : list) rows.push_back(to_json(entry));
  return rows;
}

/// null where there is none
template <typename Optional>
ordered_json or_null(const Optional& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace kvcast::cli
