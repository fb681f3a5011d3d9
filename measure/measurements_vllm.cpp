#include <cmath>

#include <fmt/format.h>

#include "measure/measurement_fields.h"
#include "model/base/error.h"

namespace kvcast::measure {
namespace {

std::uint64_t asked(const std::optional<std::uint64_t>& value, const char* flag, MeasuredRow& row) {
  if (!value && row.unusable.empty()) {
    row.unusable = fmt::format("its file does not say it; expected {}", flag);
  }
  return value.value_or(1);
}

/// Tokens of one request, where the file has those of all.
std::uint64_t mean_length(const MeasurementFields& f, const char* total,
                          const std::optional<std::uint64_t>& given, std::uint64_t completed) {
  if (given) return *given;
  const auto mean = static_cast<double>(f.whole(total, completed)) / static_cast<double>(completed);
  return static_cast<std::uint64_t>(std::llround(mean));
}

}  // namespace

MeasuredRow vllm_latency_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  row.size.batch = asked(defaults.batch, "--batch", row);
  row.size.prompt_len = asked(defaults.prompt_len, "--prompt-len", row);
  row.size.output_len = asked(defaults.output_len, "--output-len", row);
  row.times.push_back({Metric::Request, f.positive("avg_latency")});
  return row;
}

MeasuredRow vllm_serve_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  if (row.model.empty()) row.model = f.text_or("model_id", "");
  const std::uint64_t completed = f.whole("completed", 1);
  row.size.prompt_len = mean_length(f, "total_input_tokens", defaults.prompt_len, completed);
  row.size.output_len = mean_length(f, "total_output_tokens", defaults.output_len, completed);
  row.size.batch = defaults.batch.value_or(f.whole_or("max_concurrency", 0, 1));
  row.id = fmt::format("{} rate {} concurrency {} {}", row.model, f.text_or("request_rate", "?"),
                       f.text_or("max_concurrency", "?"), f.text_or("date", ""));
  if (row.size.batch == 0) {
    row.size.batch = 1;
    row.unusable = "how many requests ran at once is not in its file; expected --batch";
  }
  // With several at once a first token waits for other requests, which no forecast of one batch
  // has.
  if (row.size.batch == 1) row.times.push_back({Metric::Ttft, f.positive("mean_ttft_ms") / 1e3});
  if (row.size.output_len > 1) {
    row.times.push_back({Metric::Tpot, f.positive("mean_tpot_ms") / 1e3});
  }
  if (row.times.empty()) row.unusable = "a first token that waits for other requests";
  return row;
}

}  // namespace kvcast::measure
