#include "cli/frame/result.h"

#include <optional>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/csv_writer.h"

namespace kvcast::cli {
namespace {

ordered_json value_of(const Column& column, const ordered_json& row, std::size_t number) {
  if (column.key.empty()) return row;
  if (column.key == "#") return row.contains("reason") ? ordered_json() : ordered_json(number);
  if (column.key.front() == '/') {
    const ordered_json::json_pointer place(column.key);
    return row.contains(place) ? row.at(place) : ordered_json();
  }
  const auto found = row.find(column.key);
  return found == row.end() ? ordered_json() : *found;
}

std::string words_of(const Column& column, const ordered_json& value) {
  if (value.is_null()) return "";
  if (column.words) return column.words(value);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void write_cell(CsvWriter& csv, const ordered_json& value) {
  if (value.is_null()) {
    csv.missing_cell();
  } else if (value.is_number_float()) {
    csv.cell(value.get<double>());
  } else {
    csv.cell(words_of({}, value));
  }
}

}  // namespace

std::string in_seconds(const ordered_json& v) {
  return format_quantity(v.get<double>(), Dimension::Seconds);
}
std::string in_bytes(const ordered_json& v) {
  return format_quantity(v.get<double>(), Dimension::Bytes);
}
std::string in_bytes_per_second(const ordered_json& v) {
  return format_quantity(v.get<double>(), Dimension::BytesPerSecond);
}
std::string in_percent(const ordered_json& v) {
  return fmt::format("{:.1f} %", 100 * v.get<double>());
}
std::string in_signed_percent(const ordered_json& v) {
  return fmt::format("{:+.1f} %", 100 * v.get<double>());
}
Words in(const std::string& format, double scale) {
  return [=](const ordered_json& v) {
    return fmt::format(fmt::runtime(format), scale * v.get<double>());
  };
}
Words if_true(const std::string& text) {
  return [=](const ordered_json& v) { return v.get<bool>() ? text : std::string(); };
}

std::string table_text(const std::vector<Column>& columns, const ordered_json& rows) {
  std::vector<std::string> headings;
  for (const Column& column : columns) headings.push_back(column.heading);
  Table table(std::move(headings));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> cells;
    for (const Column& c : columns) cells.push_back(words_of(c, value_of(c, rows[i], i + 1)));
    table.add(std::move(cells));
  }
  return table.text();
}

void write_rows_csv(const std::string& path, const std::vector<Column>& columns,
                    const ordered_json& rows) {
  std::vector<std::string_view> headings;
  for (const Column& c : columns) headings.push_back(c.heading.empty() ? c.key : c.heading);
  CsvWriter csv(csv_target(path), headings);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const Column& column : columns) {
      const ordered_json value = value_of(column, rows[i], i + 1);
      if (column.words) {
        csv.cell(words_of(column, value));
      } else {
        write_cell(csv, value);
      }
    }
    csv.end_row();
  }
  csv.commit();
}

std::string csv_target(const std::string& csv) { return csv == "-" ? "/dev/stdout" : csv; }

void check_rows_alone(const std::string& csv,
                      const std::vector<std::pair<const char*, bool>>& flags) {
  if (csv != "-") return;
  for (const auto& [flag, given] : flags) {
    if (!given) continue;
    throw Error(std::string(flag) +
                ": cannot be combined with --csv -, which prints to standard output too; "
                "expected --csv FILE");
  }
}

std::vector<Column> columns_of(const std::vector<std::string>& keys) {
  std::vector<Column> columns;
  for (const std::string& key : keys) columns.push_back({key, key});
  return columns;
}

void RowsOutput::add_to(Command command, const std::string& csv_help) {
  command.add("--csv", csv, csv_help);
  command.add("--json", json);
}

void RowsOutput::check(std::vector<std::pair<const char*, bool>> others) const {
  others.insert(others.begin(), {"--json", json});
  check_rows_alone(csv, others);
}

}  // namespace kvcast::cli
