#include "search/serving_rate.h"

#include <algorithm>
#include <cmath>

#include "simulate/parallel_for.h"

namespace kvcast::search {
namespace {

constexpr std::size_t at_a_time = 8;
/// So rarely does one of all requests meet another that lower rates change nothing. Ours.
constexpr double alone = 0.01;
/// Where requests arrive over more time than this, no lower rates are tried. Ours: eight halvings
/// stay below the 1e10 s at which steps can be told apart.
constexpr double longest_s = 1e7;

}  // namespace

RateFound find_max_rate(const RateSearch& search,
                        const std::function<simulate::ServingTimes(double rate)>& serve) {
  RateFound found;
  double low = 0;       // holds
  double high = 0;      // fails; 0: none is known
  double meetings = 0;  // about, of all requests at the lowest rate tried
  double span_s = 0;    // in which they arrive there
  const auto try_rates = [&](const std::vector<double>& rates) {
    std::vector<ServedRate> tried(rates.size());
    simulate::parallel_for(rates.size(), search.threads, [&](std::size_t i) {
      tried[i].rate = rates[i];
      tried[i].times = serve(rates[i]);
      tried[i].holds = tried[i].times.slo_attainment >= search.attainment;
    });
    for (ServedRate& t : tried) {
      if (t.holds || (high > 0 && t.rate >= high)) continue;
      high = t.rate;
      const auto requests = static_cast<double>(t.times.requests);
      meetings = requests * t.times.mean_requests_in_system;
      span_s = requests / t.rate;
    }
    for (ServedRate& t : tried) {
      if (t.holds && (high == 0 || t.rate < high)) low = std::max(low, t.rate);
      found.tried.push_back(std::move(t));
    }
  };
  // Brackets: powers of two around the first rate, upwards or downwards.
  const auto powers = [&](double from, double factor) {
    std::vector<double> rates;
    for (std::size_t i = 0; i < at_a_time; ++i) {
      rates.push_back(from * std::pow(factor, static_cast<double>(i)));
    }
    return rates;
  };
  try_rates(powers(search.first_rate / 8, 2));
  while (high == 0 && low < search.most_rate) try_rates(powers(2 * low, 2));
  while (low == 0 && meetings > alone && span_s < longest_s) try_rates(powers(high / 2, 0.5));
  while (low > 0 && high > low * (1 + search.precision)) {
    std::vector<double> rates;
    const double ratio = std::pow(high / low, 1.0 / (at_a_time + 1));
    for (std::size_t i = 1; i <= at_a_time; ++i) {
      rates.push_back(low * std::pow(ratio, static_cast<double>(i)));
    }
    try_rates(rates);
  }
  found.rate = low;
  found.is_limit = high > 0;
  std::sort(found.tried.begin(), found.tried.end(),
            [](const ServedRate& a, const ServedRate& b) { return a.rate < b.rate; });
  return found;
}

}  // namespace kvcast::search
