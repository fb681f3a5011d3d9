/// The highest rate of requests at which a server keeps its objective.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "simulate/serving/serving_times.h"

namespace kvcast::search {

/// What became of the requests at a rate.
struct ServedRate {
  double rate = 0;  ///< requests a second
  simulate::ServingTimes times;
  bool holds = false;  ///< the objective

  /// The requests end soon after the last one arrives. Else they are too few for a steady load, and
  /// end before a queue is seen that grows.
  bool is_steady() const {
    constexpr double least_share = 0.9;  // of the time, in which requests arrive; ours
    return times.last_arrival_s >= least_share * times.duration_s;
  }
};

struct RateSearch {
  double first_rate = 1;    ///< where the search begins
  double attainment = 0.9;  ///< share of the requests that must keep the objective
  double precision = 0.01;  ///< relative, of the rate that is found
  double most_rate = 1e6;   ///< a rate that all of this holds at is not searched beyond
  std::size_t threads = 0;  ///< 0: as many as the machine has
};

struct RateFound {
  double rate = 0;                ///< 0: no rate holds, not even where no request meets another
  bool is_limit = true;           ///< false: all that were tried hold, and `rate` is the highest
  std::vector<ServedRate> tried;  ///< by rate, each once

  const ServedRate* at_limit() const {
    const auto at = std::find_if(tried.begin(), tried.end(),
                                 [this](const ServedRate& t) { return t.rate == rate; });
    return at == tried.end() ? nullptr : &*at;
  }
};

/// Tries rates side by side, eight at a time, until the highest that holds and the lowest that
/// fails are near each other. `serve` is called from several threads. A rate holds if at least
/// `attainment` of its requests keep the objective; rates are taken to hold up to one and fail
/// above it.
RateFound find_max_rate(const RateSearch& search,
                        const std::function<simulate::ServingTimes(double rate)>& serve);

}  // namespace kvcast::search
