/// One record of a measurement file, CSV or JSON, by the names of its fields; and the readers of
/// the formats, for measurements.cpp.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  std::string text_or(std::string_view field, std::string fallback) const;
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

/// A row with what the user said, and kernels and dtypes of his.
MeasuredRow row_of(const MeasurementFields& fields, const MeasurementDefaults& defaults);
/// Weights, activations and cache of one dtype.
void set_dtype(MeasuredRow& row, DType dtype);

/// kvcast's own: a row has all times of a run, or, with a column `metric`, one of them.
std::vector<MeasuredRow> own_csv_rows(const CsvTable& table, const MeasurementDefaults& defaults);

/// A record of llama-bench: a prompt (pp), an output (tg) or both (pg).
MeasuredRow llama_bench_row(const MeasurementFields& fields, const MeasurementDefaults& defaults);
MeasuredRow batched_bench_row(const MeasurementFields& fields, const MeasurementDefaults& defaults);

/// The result of vLLM's latency benchmark: a whole batch's time from end to end.
MeasuredRow vllm_latency_row(const MeasurementFields& fields, const MeasurementDefaults& defaults);
/// The result of vLLM's serving benchmark.
MeasuredRow vllm_serve_row(const MeasurementFields& fields, const MeasurementDefaults& defaults);

}  // namespace kvcast::measure
