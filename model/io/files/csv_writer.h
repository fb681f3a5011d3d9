/// Writes CSV: RFC 4180 quoting, numbers that read back as the same number, '\n' line ends.
#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/io/files/atomic_file.h"
#include "model/io/files/number_text.h"

namespace kvcast {

/// CSV in memory. One call a cell and one a row; every row has as many cells as the first.
class CsvText {
 public:
  /// Quoted when it holds a comma, a quote or a line end.
  CsvText& cell(std::string_view text);
  CsvText& cell(const char* text) { return cell(std::string_view(text)); }
  CsvText& cell(const std::string& text) { return cell(std::string_view(text)); }
  /// The shortest digits that read back as the same double, whole numbers without exponent below
  /// 1e15; "inf", and an empty cell for NaN, which stands for "no value".
  CsvText& cell(double number);
  /// "true" or "false"
  CsvText& cell(bool flag) { return cell(flag ? "true" : "false"); }
  template <std::integral T>
  CsvText& cell(T number) {
    separate();
    append_number(text_, number);
    return *this;
  }
  CsvText& missing_cell() { return cell(std::string_view{}); }
  void end_row();

  const std::string& text() const { return text_; }
  /// Forgets the text, keeps its memory and the number of columns.
  void clear() { text_.clear(); }

 private:
  void separate();

  std::string text_;
  std::size_t cells_ = 0;    ///< in the unfinished row
  std::size_t columns_ = 0;  ///< of the first row; 0 before it ends
};

/// A CSV file, written as AtomicFile writes: it appears when `commit` succeeds.
class CsvWriter {
 public:
  /// Writes the header row. Throws Error as AtomicFile does.
  CsvWriter(const std::filesystem::path& path, std::span<const std::string_view> columns);
  CsvWriter(const std::filesystem::path& path, std::initializer_list<std::string_view> columns)
      : CsvWriter(path, std::span(columns.begin(), columns.size())) {}

  template <typename T>
  CsvWriter& cell(const T& value) {
    text_.cell(value);
    return *this;
  }
  CsvWriter& missing_cell() { return cell(std::string_view{}); }
  /// Throws Error.
  void end_row();
  /// Throws Error.
  void commit();

 private:
  AtomicFile file_;
  CsvText text_;  ///< not yet in the file
};

}  // namespace kvcast
