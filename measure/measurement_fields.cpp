#include "measure/measurement_fields.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/io/files/number_text.h"

namespace kvcast::measure {
namespace {

constexpr std::uint64_t max_whole = std::uint64_t{1} << 40;

}  // namespace

MeasurementFields::MeasurementFields(const CsvRow& row) : place_(row.place("")) {
  // "FILE:LINE", without the column.
  place_.erase(place_.rfind(": column"));
  for (const std::string& column : row.table().columns()) {
    if (!row.text(column).empty()) texts_.emplace(column, row.text(column));
  }
}

MeasurementFields::MeasurementFields(const nlohmann::json& record, std::string place)
    : place_(std::move(place)) {
  if (!record.is_object()) throw Error(place_, "no JSON object", "one for each measured run");
  for (const auto& [key, value] : record.items()) {
    if (value.is_string()) {
      texts_.emplace(key, value.get<std::string>());
    } else if (value.is_boolean()) {
      texts_.emplace(key, value.get<bool>() ? "1" : "0");
    } else if (value.is_number()) {
      texts_.emplace(key, value.dump());
    }
  }
}

void MeasurementFields::fail(std::string_view field, std::string_view expected) const {
  const std::string where = place_ + ": '" + std::string(field) + "'";
  if (!has(field)) throw Error(where + ": missing; expected " + std::string(expected));
  throw Error(where, "'" + text(field) + "'", expected);
}

const std::string& MeasurementFields::text(std::string_view field) const {
  const auto found = texts_.find(field);
  if (found == texts_.end()) fail(field, "a value");
  return found->second;
}

std::string MeasurementFields::text_or(std::string_view field, std::string_view fallback) const {
  return has(field) ? text(field) : std::string(fallback);
}

double MeasurementFields::positive(std::string_view field) const {
  double value = 0;
  if (!has(field) || !parse_number(text(field), value) || !std::isfinite(value) || value <= 0) {
    fail(field, "a number above zero");
  }
  return value;
}

std::uint64_t MeasurementFields::whole(std::string_view field, std::uint64_t minimum) const {
  std::uint64_t value = 0;
  if (!has(field) || !parse_number(text(field), value) || value < minimum || value > max_whole) {
    fail(field, "a whole number from " + std::to_string(minimum) + " to 2^40");
  }
  return value;
}

std::uint64_t MeasurementFields::whole_or(std::string_view field, std::uint64_t fallback,
                                          std::uint64_t minimum) const {
  return has(field) ? whole(field, minimum) : fallback;
}

}  // namespace kvcast::measure
