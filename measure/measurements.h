/// Reads measurements from the files that benchmark tools write: rows to compare forecasts
/// with.
///
/// Formats, recognised by content: kvcast's own CSV (columns: data/measurements/README.md),
/// llama-bench CSV, JSON and JSONL, llama.cpp's batched-bench JSONL, vLLM's latency and serve JSON,
/// a CSV of servers, a CSV of kernel times and one of training steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measure/closed_loop.h"
#include "measure/training_run.h"
#include "model/forward/forward.h"
#include "model/forward/recorder.h"
#include "roofline/forecast.h"
#include "roofline/kernel.h"

namespace kvcast::measure {

/// What a time measures.
enum class Metric {
  Ttft,     ///< prefill of the whole batch up to its first token
  Tpot,     ///< one decode step, mean over the output
  Request,  ///< the whole request: ttft + (output_len - 1) x tpot
  TrainingStep,
  // Of a kernel alone.
  Product,
  PrefillAttention,
  DecodeAttention,
};
/// "ttft_s", "tpot_s", "request_s", "step_s", "product_s", "prefill_attention_s",
/// "decode_attention_s"
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
  std::string id;                ///< the file's, or made from what was run
  std::string model;             ///< empty: neither the file nor the user named one
  std::uint64_t parameters = 0;  ///< finds the model where it has no name; 0: unknown
  std::string hardware;          ///< empty: as of `model`
  std::string engine;            ///< empty: the file names none
  std::string engine_version = {};
  std::string date = {};    ///< "2024-06": chooses the version where the file names none
  std::string source = {};  ///< who published it; empty: the user measured it
  std::string method = "plain";
  Lowering lowering;
  // Whether the file says so; if not, the engine does.
  bool says_attention = false;
  bool says_elementwise = false;
  Logits logits = Logits::Last;  ///< that the prefill computes
  roofline::DesignPoint size;
  std::optional<roofline::Kernel> kernel;  ///< what was timed instead of a request
  std::optional<TrainingRun> training;     ///< a step of training was; prompt_len is a sequence's
  std::uint64_t num_devices = 0;           ///< 0: as the method and the parallelism say
  Parallelism parallelism = {};
  std::string platform = {};  ///< what joins them; empty: the hardware's node
  std::vector<MeasuredTime> times;
  /// `size.batch` clients sent their next request when the last one ended.
  std::optional<LoopRequests> closed_loop = {};
  double mean_output() const {
    return closed_loop ? closed_loop->mean(size.output_len) : static_cast<double>(size.output_len);
  }
  std::uint64_t turn = 0;  ///< which of several runs in one file; 0: the file has one run
  std::string unusable;    ///< why no forecast can be compared with it; empty: one can
};

/// Values for rows whose file does not give them.
struct MeasurementDefaults {
  std::string model = {};
  std::string method = "plain";
  std::string attention = {};  ///< empty: the engine's, or tiled
  std::string dtype = {};      ///< empty: the file's, or fp16
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
/// Several runs of the same rows, each in its own file or as a turn of one file. The times of a row
/// are the medians over the runs that have it. Throws Error as above, and for files of different
/// formats or a file named twice.
Measurements read_runs(const std::vector<std::filesystem::path>& paths,
                       const MeasurementDefaults& defaults = {});

}  // namespace kvcast::measure
