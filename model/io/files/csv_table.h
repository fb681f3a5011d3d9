/// Checked reading of CSV files: every error names the file and the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast {

class CsvTable;

/// One record of a CsvTable, which must outlive it.
class CsvRow {
 public:
  CsvRow(const CsvTable& table, std::size_t index) : table_(&table), index_(index) {}

  const CsvTable& table() const { return *table_; }
  /// Throws Error with the columns that there are.
  const std::string& text(std::string_view column) const;
  /// A finite decimal number, nothing around it. Throws Error otherwise.
  double number(std::string_view column) const;
  /// A whole number without sign, at most 2^64 - 1. Throws Error otherwise.
  std::uint64_t whole(std::string_view column) const;
  /// "FILE:LINE: column 'COLUMN'", for errors about a cell.
  std::string place(std::string_view column) const;
  /// Where it begins, from 1.
  std::size_t line() const;

 private:
  const CsvTable* table_;
  std::size_t index_;
};

/// A CSV file with a header, held in memory.
/// Format: RFC 4180, with LF accepted for CRLF. A quoted field may hold commas, line ends and
/// doubled quotes; a byte-order mark at the start is skipped.
class CsvTable {
 public:
  /// Throws Error as `read_file` and `parse` do.
  static CsvTable read(const std::filesystem::path& path);
  /// `name` stands for the file in errors. Throws Error for an empty text, an empty or repeated
  /// column name, a record with more or fewer fields than the header, and stray quotes.
  static CsvTable parse(std::string_view text, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& columns() const { return columns_; }
  bool has_column(std::string_view column) const;
  std::size_t size() const { return records_.size(); }
  CsvRow operator[](std::size_t index) const { return {*this, index}; }
  /// All records, in the order of the file.
  std::vector<CsvRow> rows() const;

 private:
  friend class CsvRow;
  struct Record {
    std::vector<std::string> fields;
    std::size_t line = 0;  ///< where it begins, from 1
  };
  class Parser;
  std::size_t column_index(std::string_view column) const;

  std::string name_;
  std::vector<std::string> columns_;
  std::vector<Record> records_;
};

}  // namespace kvcast
