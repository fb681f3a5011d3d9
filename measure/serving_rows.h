/// Measured rows of servers under load: CSV files whose columns `run`, `scheduler` and `workload`
/// say in words what was set and what was sent. Rows with the same run and load are of one server.
///
/// What the words leave open is assumed, and each assumption is listed with the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/files/csv_table.h"
#include "simulate/serving/arrivals.h"

namespace kvcast::measure {

enum class ServedQuantity {
  Ttft,
  Tpot,
  Itl,
  E2e,
  Makespan,
  RequestRate,
  OutputTokenRate,
  TokenRate,  ///< of prompts and outputs
  MaxRate,    ///< the highest rate at which few enough requests miss a limit
};

/// One measured value, in seconds or a second.
struct ServedFigure {
  std::string place;  ///< "FILE:LINE"
  std::string id;
  std::string metric;  ///< as the file has it
  ServedQuantity quantity = ServedQuantity::Ttft;
  std::optional<double> percentile;  ///< 0 to 100; empty: the mean, or the only value
  double measured = 0;
  std::string unusable;  ///< why nothing can be compared with it
};

/// "throughput", "max rate", "ttft" (mean and median), "tpot", "itl", "e2e", "makespan", "tail" (a
/// percentile from 90 on).
std::string_view kind(const ServedFigure& figure);

/// Tokens of prompts or of outputs.
struct ServedLengths {
  enum class Kind {
    Uniform,  ///< each from `least` to `most` as likely
    Ending,   ///< after each token the same chance to end, at `most` in any case
  };
  Kind kind = Kind::Uniform;
  std::uint64_t least = 1;
  std::uint64_t most = 1;
  double mean = 1;  ///< of Ending, below (most + 1) / 2 or above
};
ServedLengths exactly(std::uint64_t tokens);

struct ServedGroup {
  std::uint64_t count = 0;
  ServedLengths prompt;
  ServedLengths output;
};

struct ServedWorkload {
  std::string trace;                           ///< a file with the prompts; empty: `groups`
  std::vector<std::string> arrival_columns;    ///< of the trace, one for each of the pooled runs
  std::vector<ServedGroup> groups;             ///< shuffled
  std::optional<ServedLengths> output;         ///< of a trace that has none
  std::optional<simulate::Arrivals> arrivals;  ///< empty: the trace's
  std::uint64_t pooled_runs = 1;
  /// Of a closed loop, without the requests that the clients send first and those that are
  /// answered when nobody sends any more.
  bool steady = false;
};

/// For MaxRate: the rates that were tried, and what a request had to keep.
struct RateGrid {
  double first = 0;
  double step = 0;
  double last = 0;
  double limit_s = 0;          ///< of a whole request
  std::uint64_t may_miss = 0;  ///< requests
};

/// One server under one load.
struct ServedRun {
  std::string run;
  std::string load;
  std::string source;
  std::string model;
  std::string hardware;
  std::uint64_t tp = 1;
  std::string engine;          ///< "vllm:0.7.3", as EngineMatch takes name and version
  std::string engine_version;  ///< or "2025-10", the month
  std::string host_version;    ///< whose host times it has; empty: its own
  bool eager = false;          ///< no CUDA graphs
  std::string method = "plain";
  std::string weight_dtype;
  bool fp8_cache = false;
  bool chunked_v0 = false;                       ///< vLLM's first scheduler with chunked prefill
  std::map<std::string, std::string> scheduler;  ///< KEY -> VALUE of `--scheduler`
  std::optional<double> memory_share;
  bool sends_text = true;        ///< else token ids, which nobody tokenises
  std::uint64_t num_blocks = 0;  ///< in all, those that the engine keeps for itself included
  /// A step has at least room for the longest prompt beside a token of each sequence.
  bool fits_longest_prompt = false;
  ServedWorkload workload;
  std::optional<RateGrid> grid;
  std::vector<std::string> assumed;
  std::vector<ServedFigure> figures;
  std::string unusable;  ///< why there is no forecast
};

/// True if the file's first line names the columns run, scheduler and workload.
bool is_serving_table(const std::filesystem::path& path);

/// Runs in the order of their first rows. Throws Error: a missing column, a value that is no number
/// above zero, a unit that does not belong to its metric.
std::vector<ServedRun> read_served_runs(const CsvTable& table);

}  // namespace kvcast::measure
