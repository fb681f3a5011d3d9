#include <algorithm>
#include <array>
#include <optional>

#include "measure/measurement_fields.h"
#include "model/base/error.h"

namespace kvcast::measure {
namespace {

constexpr std::array known_columns{"id",
                                   "model",
                                   "hardware",
                                   "engine",
                                   "engine_version",
                                   "method",
                                   "attention",
                                   "elementwise",
                                   "dtype",
                                   "weight_dtype",
                                   "activation_dtype",
                                   "cache_dtype",
                                   "logits",
                                   "batch",
                                   "prompt_len",
                                   "output_len",
                                   "num_devices",
                                   "ttft_s",
                                   "tpot_s",
                                   "request_s",
                                   "metric",
                                   "value",
                                   "unit",
                                   "derived",
                                   "source",
                                   "note",
                                   "error",
                                   "predicted_ttft_s",
                                   "predicted_tpot_s",
                                   "ttft_relative_error",
                                   "tpot_relative_error",
                                   "ttft_spread",
                                   "tpot_spread",
                                   "rounds",
                                   "compute_rate",
                                   "memory_rate",
                                   "rounds_discarded",
                                   "rounds_unsteady",
                                   "turn"};

struct TimeColumn {
  const char* column;
  Metric metric;
};
constexpr TimeColumn time_columns[] = {
    {"ttft_s", Metric::Ttft}, {"tpot_s", Metric::Tpot}, {"request_s", Metric::Request}};

/// A measured metric: a time in s or ms, or a rate of tokens and the time that it stands for.
struct LongMetric {
  const char* name;
  Metric metric;
  bool is_rate;
};
constexpr LongMetric long_metrics[] = {
    {"ttft_s", Metric::Ttft, false},
    {"tpot_s", Metric::Tpot, false},
    {"request_s", Metric::Request, false},
    {"prefill_tokens_per_s", Metric::Ttft, true},
    {"decode_tokens_per_s", Metric::Tpot, true},
    {"throughput_output_tokens_per_s", Metric::Request, true},
};

void check_columns(const CsvTable& table) {
  const std::vector<std::string> known(known_columns.begin(), known_columns.end());
  for (const std::string& column : table.columns()) {
    if (std::find(known.begin(), known.end(), column) != known.end()) continue;
    for (const TimeColumn& time : time_columns) {
      const std::string stem(time.column, std::string_view(time.column).size() - 1);
      if (column.starts_with(stem)) {
        throw Error(table.name() + ":1", "column '" + column + "'",
                    std::string(time.column) + ": times are in seconds");
      }
    }
    throw Error(table.name() + ":1: " + unknown_name("column", column, known).what());
  }
  const bool is_long = table.has_column("metric");
  bool has_times = false;
  for (const TimeColumn& time : time_columns) has_times |= table.has_column(time.column);
  if (is_long && has_times) {
    throw Error(table.name() + ":1", "a column of times beside the column metric",
                "one way to write a time");
  }
  if (!is_long && !has_times) {
    throw Error(table.name() + ":1", "no column of times",
                "ttft_s, tpot_s or request_s, or metric, value and unit");
  }
}

MeasuredTime long_time(const MeasurementFields& f, const roofline::DesignPoint& size) {
  for (const LongMetric& m : long_metrics) {
    if (f.text("metric") != m.name) continue;
    const std::string& unit = f.text("unit");
    const double value = f.positive("value");
    if (!m.is_rate) {
      if (unit == "s") return {m.metric, value};
      if (unit == "ms") return {m.metric, value / 1e3};
      f.fail("unit", "s or ms, as " + f.text("metric") + " is a time");
    }
    if (unit != "tokens/s") f.fail("unit", "tokens/s, as " + f.text("metric") + " is a rate");
    const auto batch = static_cast<double>(size.batch);
    switch (m.metric) {
      case Metric::Ttft: return {m.metric, batch * static_cast<double>(size.prompt_len) / value};
      case Metric::Tpot: return {m.metric, batch / value};
      case Metric::Request: return {m.metric, batch * static_cast<double>(size.output_len) / value};
    }
  }
  std::vector<std::string> names;
  for (const LongMetric& m : long_metrics) names.emplace_back(m.name);
  throw Error(f.place() + ": " + unknown_name("metric", f.text("metric"), names).what());
}

/// A length as a file may leave it to the user; the phases of llama-bench have a 0 for the other's.
std::uint64_t length(const MeasurementFields& f, const char* field,
                     const std::optional<std::uint64_t>& fallback) {
  if (!f.has(field) && fallback) return *fallback;
  return std::max<std::uint64_t>(f.whole(field, 0), 1);
}

template <typename Parse>
auto parsed(const MeasurementFields& f, const char* field, Parse parse) {
  try {
    return parse(f.text(field));
  } catch (const Error& e) {
    throw Error(f.place() + ": '" + field + "': " + e.what());
  }
}

MeasuredRow own_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  row.id = f.text_or("id", "");
  row.model = f.text_or("model", row.model);
  row.hardware = f.text_or("hardware", row.hardware);
  row.method = f.text_or("method", row.method);
  Lowering& l = row.lowering;
  if (f.has("attention")) l.attention = l.elementwise = parsed(f, "attention", parse_kernels);
  if (f.has("elementwise")) l.elementwise = parsed(f, "elementwise", parse_kernels);
  if (f.has("dtype")) set_dtype(row, parsed(f, "dtype", parse_dtype));
  if (f.has("weight_dtype")) l.weights = parsed(f, "weight_dtype", parse_dtype);
  if (f.has("activation_dtype")) l.activations = parsed(f, "activation_dtype", parse_dtype);
  if (f.has("cache_dtype")) l.cache = parsed(f, "cache_dtype", parse_dtype);
  if (f.has("logits")) row.logits = parsed(f, "logits", parse_logits);
  row.size.batch = f.has("batch") ? f.whole("batch", 1) : defaults.batch.value_or(1);
  row.size.prompt_len = length(f, "prompt_len", defaults.prompt_len);
  row.size.output_len = length(f, "output_len", defaults.output_len);
  if (f.has("error")) {
    row.unusable = f.text("error");
  } else if (f.has("metric")) {
    row.times.push_back(long_time(f, row.size));
  } else {
    for (const TimeColumn& time : time_columns) {
      if (f.has(time.column)) row.times.push_back({time.metric, f.positive(time.column)});
    }
    if (row.times.empty()) throw Error(f.place(), "no time", "ttft_s, tpot_s or request_s");
  }
  row.num_devices = f.whole_or("num_devices", 0, 1);
  row.turn = f.whole_or("turn", 0, 1);
  return row;
}

}  // namespace

std::vector<MeasuredRow> own_csv_rows(const CsvTable& table, const MeasurementDefaults& defaults) {
  check_columns(table);
  std::vector<MeasuredRow> rows;
  for (const CsvRow& row : table.rows()) {
    rows.push_back(own_row(MeasurementFields(row), defaults));
  }
  return rows;
}

}  // namespace kvcast::measure
