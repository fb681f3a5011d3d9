#include "model/io/files/csv_writer.h"

#include <cmath>
#include <cstdint>

#include "model/base/error.h"

namespace kvcast {
namespace {

constexpr std::size_t flush_bytes = std::size_t{1} << 18;
constexpr double exponent_from = 1e15;

}  // namespace

CsvText& CsvText::cell(std::string_view text) {
  separate();
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    text_ += text;
    return *this;
  }
  text_ += '"';
  for (const char c : text) {
    if (c == '"') text_ += '"';
    text_ += c;
  }
  text_ += '"';
  return *this;
}

CsvText& CsvText::cell(double number) {
  // Counts arrive as doubles: as integers they print faster, and as 100000 instead of 1e+05.
  if (std::fabs(number) < exponent_from) {
    const auto whole = static_cast<std::int64_t>(number);
    if (static_cast<double>(whole) == number) return cell(whole);
  }
  separate();
  if (!std::isnan(number)) append_number(text_, number);
  return *this;
}

void CsvText::end_row() {
  if (columns_ == 0) columns_ = cells_;
  KVCAST_ASSERT(cells_ == columns_ && cells_ > 0);
  // A row that is one empty cell would be an empty line, which readers skip.
  if (columns_ == 1 && (text_.empty() || text_.back() == '\n')) text_ += "\"\"";
  text_ += '\n';
  cells_ = 0;
}

void CsvText::separate() {
  if (cells_++ > 0) text_ += ',';
}

CsvWriter::CsvWriter(const std::filesystem::path& path, std::span<const std::string_view> columns)
    : file_(path) {
  for (const std::string_view column : columns) text_.cell(column);
  text_.end_row();
}

void CsvWriter::end_row() {
  text_.end_row();
  if (text_.text().size() < flush_bytes) return;
  file_.write(text_.text());
  text_.clear();
}

void CsvWriter::commit() {
  file_.write(text_.text());
  text_.clear();
  file_.commit();
}

}  // namespace kvcast
