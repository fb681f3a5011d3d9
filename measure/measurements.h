/// Measurements that others made, read from the files that their tools write: rows to hold
/// forecasts against.
///
/// Formats, recognised by content: kvcast's own CSV (columns: data/measurements/README.md),
/// llama-bench CSV, JSON and JSONL, llama.cpp's batched-bench JSONL, vLLM's latency and serve JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/forward/forward.h"
#include "model/forward/recorder.h"
#include "roofline/forecast.h"

namespace kvcast::measure {

/// What a time was taken of.
enum class Metric {
  Ttft,     ///< prefill of the whole batch up to its first token
  Tpot,     ///< one decode step, mean over the output
  Request,  ///< the whole request: ttft + (output_len - 1) x tpot
};
/// "ttft_s", "tpot_s", "request_s"
std::string_view name(Metric metric);
/// "eager" or "tiled"; "eager" or "fused"
std::string_view attention_name(Kernels attention);
std::string_view elementwise_name(Kernels elementwise);

struct MeasuredTime {
  Metric metric = Metric::Ttft;
  double seconds = 0;
};

/// One measured run. Sizes are at least 1, times above zero.
struct MeasuredRow {
  std::string place;             ///< "FILE:LINE" or "FILE: /2"
  std::string id;                ///< of the file, or made of what the run was
  std::string model;             ///< empty: the file does not say, nor did the user
  std::uint64_t parameters = 0;  ///< to find the model by; 0: not known
  std::string hardware;          ///< empty likewise
  std::string method = "plain";
  Lowering lowering;
  Logits logits = Logits::Last;  ///< whose the TTFT holds
  roofline::DesignPoint size;
  std::uint64_t num_devices = 0;  ///< that read the prompt; 0: as many as the method says
  std::vector<MeasuredTime> times;
  std::uint64_t turn = 0;  ///< of several in one file, whose rows repeat; 0: the file says none
  std::string unusable;    ///< why no forecast can be held against it; empty: one can
};

/// What the user says about rows whose file does not.
struct MeasurementDefaults {
  std::string model = {};
  std::string method = "plain";
  std::string attention = "tiled";
  std::string dtype = {};  ///< empty: the file's, or fp16
  std::optional<std::uint64_t> batch = {};
  std::optional<std::uint64_t> prompt_len = {};
  std::optional<std::uint64_t> output_len = {};
};

struct Measurements {
  std::string format;  ///< "kvcast CSV", "llama-bench JSON", ...
  std::vector<MeasuredRow> rows;
};

/// Throws Error: no known format, an unknown or missing column of our own format, a unit that does
/// not belong to its metric, a time that is not from 1 ns to 1e9 s, a size that is zero or
/// negative, two rows of one run.
Measurements read_measurements(const std::filesystem::path& path,
                               const MeasurementDefaults& defaults = {});
/// The same from a text; `name` stands for the file in errors.
Measurements parse_measurements(std::string_view text, const std::string& name,
                                const MeasurementDefaults& defaults = {});
/// Runs of the same rows, each in a file of its own or a turn of one file: every row's times are
/// the medians over the runs that have it. Throws Error as above, and for files of different
/// formats or a file named twice.
Measurements read_runs(const std::vector<std::filesystem::path>& paths,
                       const MeasurementDefaults& defaults = {});

}  // namespace kvcast::measure
