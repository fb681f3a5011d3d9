/// One record of a measurement file, CSV or JSON, by the names of its fields; and the table of the
/// formats that read such records, for measurements.cpp.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "measure/measurements.h"
#include "model/io/files/csv_table.h"

namespace kvcast::measure {

/// Texts by field name; numbers as they are written, true and false as "1" and "0". Lists and
/// objects inside a record are left out, and so is null.
class MeasurementFields {
 public:
  explicit MeasurementFields(const CsvRow& row);
  /// Throws Error when `record` is no object.
  MeasurementFields(const nlohmann::json& record, std::string place);

  const std::string& place() const { return place_; }
  bool has(std::string_view field) const { return texts_.find(field) != texts_.end(); }
  /// Throws Error with the field's place when it is missing.
  const std::string& text(std::string_view field) const;
  std::string text_or(std::string_view field, std::string_view fallback) const;
  /// A finite number above zero. Throws Error otherwise.
  double positive(std::string_view field) const;
  /// A whole number from `minimum` to 2^40. Throws Error otherwise.
  std::uint64_t whole(std::string_view field, std::uint64_t minimum) const;
  std::uint64_t whole_or(std::string_view field, std::uint64_t fallback,
                         std::uint64_t minimum) const;
  [[noreturn]] void fail(std::string_view field, std::string_view expected) const;

 private:
  std::string place_;
  std::map<std::string, std::string, std::less<>> texts_;
};

struct MeasurementFormat {
  const char* field;  ///< that only files of this format have; "": every other CSV
  const char* name;   ///< "llama-bench JSON"
  MeasuredRow (*read)(const MeasurementFields&, const MeasurementDefaults&);
  /// Flags of MeasurementDefaults that its rows do not take, as they have all that they need.
  const char* unused = "";
  const char* columns = nullptr;  ///< all that a CSV may have; null: it may have others
};
std::span<const MeasurementFormat> json_formats();
/// kvcast's own is the last one.
std::span<const MeasurementFormat> csv_formats();
/// Throws Error for columns that the format does not have, and unless kvcast's own has the times of
/// a run, or `metric`, `value` and `unit`.
void check_columns(const CsvTable& table, const MeasurementFormat& format);
/// Throws Error for flags that the rows of the format do not take.
void check_defaults(const MeasurementDefaults& defaults, const MeasurementFormat& format);

}  // namespace kvcast::measure
