/// The server and the client that SpecPrefill's paper measured queries per second with, simulated.
///
/// Settings and requests: data/published/specprefill_serving_settings.csv and ..._workload.csv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/io/weights/catalog.h"
#include "simulate/serving/serving.h"

namespace kvcast::reports {

/// Requests of one category.
struct ServingCategory {
  std::string name;  ///< "multi-doc QA"
  double timeout_s = 0;
  double keep = 1;
  bool is_chat = false;     ///< answers end by themselves; else raw completions
  std::vector<double> qps;  ///< that the client tries
  /// In the order in which they are sent, without arrivals.
  std::vector<simulate::ServingRequest> requests;
};

/// How the paper served, from its files.
struct ServingExperiment {
  /// Throws Error when a file cannot be read or lacks a setting.
  explicit ServingExperiment(const Catalog& catalog);
  /// Throws Error with the nearest name.
  const ServingCategory& category(const std::string& name) const;
  /// Of the server. Throws Error when it is not there.
  const std::string& setting(const std::string& name) const;
  std::uint64_t whole(const std::string& name) const;

  const Catalog& catalog;
  std::map<std::string, std::string> settings;
  std::vector<ServingCategory> categories;
  double slack_s = 0;  ///< a request fails at the timeout and this
  std::size_t misses_allowed = 0;
};

/// What is served, and what the paper leaves open.
struct ServingCase {
  std::string category;
  std::string base_model;                        ///< "llama-3.1-405b"
  bool prunes = false;                           ///< SpecPrefill; else the base model alone
  std::optional<std::uint64_t> look_ahead = {};  ///< none: the setting
  std::optional<double> keep = {};               ///< none: the category's
  /// Every output ends with its first token, the least that it can have; else at the longest that
  /// its data set allows.
  bool shortest_outputs = false;
  /// The client's requests so many times over, and as many misses. 128 requests end before a queue
  /// that grows slowly makes one miss: what a server keeps up for good is less.
  std::size_t times = 1;
};

/// The client's requests at one rate.
struct ServedPoint {
  double qps = 0;
  double mean_s = 0;  ///< of the requests that succeed
  std::size_t missed = 0;
  bool holds = false;  ///< few enough have missed
};

/// A rate after the other, until one fails.
struct ServedCurve {
  std::vector<ServedPoint> points;  ///< the last one fails, unless all hold
  double last_good_qps = 0;         ///< 0: not even the first
  double first_failed_qps = 0;      ///< 0: none
};

/// One case, simulated.
class ServedCase {
 public:
  /// `experiment` must outlive it. Throws Error as roofline::ServerStep and make_model_server do.
  ServedCase(const ServingExperiment& experiment, const ServingCase& served);
  ~ServedCase();

  ServedPoint at(double qps);
  ServedCurve curve();
  /// Between the curve's last rate that holds and the first that fails, to a hundredth of their
  /// distance; beyond the grid if that ends before a rate fails. 0 if not even the first holds;
  /// none if the requests are so few that they keep the limit all at once.
  std::optional<double> highest_qps(const ServedCurve& curve);
  /// Seconds to the first token of a request alone, the mean over the requests.
  double ttft_alone_s();
  /// Seconds of a step that reads these prompts, the host's included.
  double prompt_step_s(const std::vector<std::uint64_t>& prompts);
  /// Tokens of prompts and outputs that the cache has room for.
  std::uint64_t cache_tokens() const;

 private:
  class Clock;
  /// Seconds from arrival to the first and to the last token.
  struct Latency {
    double first = 0;
    double last = 0;
  };
  std::vector<Latency> serve(std::vector<simulate::ServingRequest> requests, double gap_s);

  const ServingExperiment& experiment_;
  const ServingCategory& category_;
  std::vector<simulate::ServingRequest> requests_;
  std::size_t misses_allowed_;
  std::shared_ptr<Clock> clock_;
  simulate::ServingSetup setup_;
};

}  // namespace kvcast::reports
