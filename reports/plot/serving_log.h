/// What happened on servers: a row for each request, a trace of steps, plots.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "reports/plot/plot.h"
#include "simulate/serving/serving.h"

namespace kvcast::reports {

/// CSV rows, written whole and in blocks, so that an interrupted run keeps what it has. The first
/// block, or flush(), makes the file: until then a wrong request leaves an earlier one as it was.
class RequestRows {
 public:
  /// Throws Error when the file cannot be written.
  explicit RequestRows(const std::filesystem::path& path);
  ~RequestRows();
  RequestRows(const RequestRows&) = delete;
  RequestRows& operator=(const RequestRows&) = delete;
  void finished(const simulate::Sequence& s);
  void rejected(const simulate::ServingRequest& r, const std::string& reason);
  /// Throws Error when the rows cannot be written.
  void flush();

 private:
  void add(const std::string& row);
  std::string path_;
  int descriptor_ = -1;
  std::string text_;
};

/// The state of a server when a step begins.
struct ServingSample {
  double time_s = 0;
  double seconds = 0;
  std::uint32_t server = 0;
  std::uint32_t row = 0;
  std::uint32_t waiting = 0;
  std::uint32_t running = 0;
  std::uint32_t prompts = 0;  ///< in the step
  std::uint32_t decodes = 0;
  std::uint64_t prompt_tokens = 0;
  double blocks = 0;  ///< share of those held
};

/// Keeps every step and request in memory, for traces and plots.
class ServingLog {
 public:
  void step(const simulate::ServedStep& step);
  void finished(const simulate::Sequence& s);

  /// Each server is a process with a row for each step under way; each request a slice from arrival
  /// to first token and one to its end.
  void write_trace(const std::filesystem::path& path) const;
  /// Waiting and running requests, and the share of the blocks that are held, over time.
  Plot occupancy_plot(const std::string& title) const;
  /// Cumulative shares of the requests' TTFT, TPOT and end-to-end times.
  Plot latency_plot(const std::string& title) const;

 private:
  struct Request {
    std::uint64_t id;
    double arrival_s;
    double first_token_s;
    double finish_s;
    std::uint64_t prompt_tokens;
    std::uint64_t output_tokens;
  };
  std::vector<ServingSample> samples_;
  std::vector<Request> requests_;
};

}  // namespace kvcast::reports
