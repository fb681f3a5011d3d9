#include "model/io/files/csv_table.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/read_file.h"
#include "model/io/files/number_text.h"

namespace kvcast {

const std::string& CsvRow::text(std::string_view column) const {
  return table_->records_[index_].fields[table_->column_index(column)];
}

double CsvRow::number(std::string_view column) const {
  const std::string& cell = text(column);
  double value = 0;
  if (!parse_number(cell, value) || !std::isfinite(value)) {
    throw Error(place(column), "'" + cell + "'", "a number");
  }
  return value;
}

std::uint64_t CsvRow::whole(std::string_view column) const {
  const std::string& cell = text(column);
  std::uint64_t value = 0;
  if (!parse_number(cell, value)) {
    throw Error(place(column), "'" + cell + "'", "a whole number from 0 to 2^64 - 1");
  }
  return value;
}

std::size_t CsvRow::line() const { return table_->records_[index_].line; }

std::string CsvRow::place(std::string_view column) const {
  return fmt::format("{}:{}: column '{}'", table_->name_, table_->records_[index_].line, column);
}

/// Splits a text into records.
class CsvTable::Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (text_.starts_with(byte_order_mark)) text_.remove_prefix(byte_order_mark.size());
  }

  bool at_end() const { return next_ == text_.size(); }

  Record record() {
    Record r;
    r.line = line_;
    for (;;) {
      r.fields.push_back(peek() == '"' ? quoted_field() : plain_field());
      if (at_end() || end_of_line()) return r;
      ++next_;  // the comma
    }
  }

  [[noreturn]] void fail(std::size_t line, std::string_view found,
                         std::string_view expected) const {
    throw Error(fmt::format("{}:{}", name_, line), found, expected);
  }

 private:
  char peek() const { return at_end() ? '\0' : text_[next_]; }

  bool end_of_line() {
    const std::string_view rest = text_.substr(next_);
    const std::size_t length = rest.starts_with("\r\n") ? 2 : rest.starts_with("\n") ? 1 : 0;
    next_ += length;
    if (length > 0) ++line_;
    return length > 0;
  }

  std::string plain_field() {
    std::size_t end = std::min(text_.find_first_of(",\n\"", next_), text_.size());
    const bool before_lf = end < text_.size() && text_[end] == '\n';
    if (before_lf && end > next_ && text_[end - 1] == '\r') --end;
    if (end < text_.size() && text_[end] == '"') {
      fail(line_, "a quote inside an unquoted field", "the whole field in quotes, its own doubled");
    }
    std::string field(text_.substr(next_, end - next_));
    next_ = end;
    return field;
  }

  std::string quoted_field() {
    const std::size_t first_line = line_;
    std::string field;
    for (++next_;; ++next_) {
      if (at_end()) fail(first_line, "a quoted field without an end", "a closing quote");
      const char c = text_[next_];
      if (c == '"') {
        ++next_;
        if (peek() != '"') break;
      }
      if (c == '\n') ++line_;
      field += c;
    }
    const std::string_view rest = text_.substr(next_);
    if (!rest.empty() && !rest.starts_with(',') && !rest.starts_with('\n') &&
        !rest.starts_with("\r\n")) {
      fail(line_, fmt::format("'{}' after a closing quote", rest.front()),
           "a comma or the end of the line");
    }
    return field;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t next_ = 0;
  std::size_t line_ = 1;
};

CsvTable CsvTable::read(const std::filesystem::path& path) {
  return parse(read_file(path, "a CSV file"), path.string());
}

CsvTable CsvTable::parse(std::string_view text, std::string name) {
  CsvTable table;
  table.name_ = std::move(name);
  Parser parser(text, table.name_);
  if (parser.at_end()) parser.fail(1, "an empty file", "a line of column names");
  table.columns_ = parser.record().fields;
  std::unordered_set<std::string_view> seen;
  for (const std::string& column : table.columns_) {
    if (column.empty()) parser.fail(1, "an empty column name", "a name for each column");
    if (!seen.insert(column).second) {
      parser.fail(1, fmt::format("column '{}' twice", column), "each column once");
    }
  }
  while (!parser.at_end()) {
    Record record = parser.record();
    if (record.fields.size() != table.columns_.size()) {
      parser.fail(record.line, fmt::format("{} fields", record.fields.size()),
                  fmt::format("{}, as in the header", table.columns_.size()));
    }
    table.records_.push_back(std::move(record));
  }
  return table;
}

bool CsvTable::has_column(std::string_view column) const {
  return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

std::vector<CsvRow> CsvTable::rows() const {
  std::vector<CsvRow> all;
  for (std::size_t i = 0; i < size(); ++i) all.emplace_back(*this, i);
  return all;
}

std::size_t CsvTable::column_index(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    throw Error(name_ + ":1", fmt::format("the columns {}", fmt::join(columns_, ",")),
                fmt::format("'{}' among them", column));
  }
  return static_cast<std::size_t>(found - columns_.begin());
}

}  // namespace kvcast
