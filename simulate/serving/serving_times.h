/// What users of a server see, as `vllm bench serve` of vLLM 0.11 defines it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulate/serving/scheduler.h"

namespace kvcast::simulate {

/// Seconds; of no values, all zero. Percentiles are linear between neighbours.
struct Latency {
  std::uint64_t values = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
};

/// What a request must keep to be served well; an empty limit holds always.
struct Slo {
  std::optional<double> ttft_s = {};
  std::optional<double> tpot_s = {};
  std::optional<double> e2e_s = {};

  bool is_empty() const { return !ttft_s && !tpot_s && !e2e_s; }
};

/// Values that come many at a time.
struct Repeated {
  double value = 0;
  std::uint64_t times = 0;
};
Latency summary(std::vector<Repeated> values);

struct ServingTimes {
  std::uint64_t requests = 0;  ///< that have arrived
  std::uint64_t finished = 0;
  std::uint64_t rejected = 0;
  std::string first_reason = {};  ///< of those that are rejected
  double last_arrival_s = 0;
  double duration_s = 0;  ///< from 0 to the last token
  double busy_s = 0;      ///< of all servers; of their stages the mean
  std::uint64_t servers = 0;
  std::uint64_t steps = 0;
  std::uint64_t input_tokens = 0;  ///< of finished requests
  std::uint64_t output_tokens = 0;
  double request_throughput = 0;  ///< a second of the duration
  double output_token_throughput = 0;
  // Of finished requests, but for the gaps.
  Latency ttft_s;  ///< from arrival
  Latency tpot_s;  ///< (last token - first one) / (tokens - 1), of requests with more than one
  Latency itl_s;   ///< gaps between tokens, of all requests together
  Latency e2e_s;
  Latency queue_s;                    ///< from arrival to the first step with it
  double goodput_requests_per_s = 0;  ///< that keep the objective
  double slo_attainment = 0;          ///< share of all requests
  double mean_requests_in_system = 0;
  std::uint64_t peak_kv_blocks = 0;  ///< of the scheduler with most, as peak_running
  SchedulerCounts counts;            ///< of all schedulers

  /// Of the prompts' tokens that were to be computed, those that the cache held.
  double prefix_hit_rate() const {
    const auto hits = static_cast<double>(counts.hit_tokens);
    const double all = hits + static_cast<double>(counts.prefill_tokens);
    return all > 0 ? hits / all : 0;
  }
  /// "3 of 5 requests are rejected: REASON"; empty: none is.
  std::string rejection() const;
};

/// Gathers them. A finished request costs 40 bytes, a step 16.
class ServingMeter {
 public:
  explicit ServingMeter(const Slo& slo) : slo_(slo) {}
  /// A token of the sequence, whose times it sets.
  void token(Sequence& s, double now);
  /// The mean of a server's stages.
  void step(double seconds);
  void server() { ++times_.servers; }
  void rejected(const std::string& reason) {
    if (times_.rejected++ == 0) times_.first_reason = reason;
  }
  void arrived(double now) {
    ++times_.requests;
    times_.last_arrival_s = std::max(times_.last_arrival_s, now);
  }
  void add(const Scheduler& scheduler);
  ServingTimes take();

 private:
  Slo slo_;
  ServingTimes times_;
  std::vector<Repeated> ttft_;
  std::vector<Repeated> tpot_;
  std::vector<Repeated> itl_;
  std::vector<Repeated> e2e_;
  std::vector<Repeated> queue_;
  std::uint64_t good_ = 0;
};

}  // namespace kvcast::simulate
