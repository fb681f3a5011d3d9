#include "measure/served_requests.h"

#include <algorithm>
#include <utility>

#include "simulate/serving/arrivals.h"
#include "simulate/serving/distributions.h"
#include "simulate/serving/request_files.h"

namespace kvcast::measure {
namespace {

using simulate::ServingRequest;

constexpr std::uint64_t seed = 1;
enum : std::uint64_t { OrderStream = simulate::PrefixStream + 1 };

class Draw {
 public:
  explicit Draw(const ServedLengths& lengths) : lengths_(lengths) {
    if (lengths.kind == ServedLengths::Kind::Ending) {
      mean_ = unlimited_mean(lengths.mean, lengths.most);
    }
  }
  std::uint64_t operator()(Random& random) const {
    const ServedLengths& l = lengths_;
    if (l.kind == ServedLengths::Kind::Uniform) {
      if (l.least == l.most) return l.least;
      return l.least + random.below(static_cast<std::uint32_t>(l.most - l.least + 1));
    }
    const double tokens = mean_ * simulate::exponential(random);
    if (tokens >= static_cast<double>(l.most - 1)) return l.most;
    return static_cast<std::uint64_t>(tokens) + 1;
  }

 private:
  ServedLengths lengths_;
  double mean_ = 0;
};

/// Shuffled if there are several groups.
std::vector<ServingRequest> generated(const ServedWorkload& w) {
  Random prompts(seed, simulate::PromptStream);
  Random outputs(seed, simulate::OutputStream);
  std::vector<ServingRequest> requests;
  for (const ServedGroup& g : w.groups) {
    const Draw prompt(g.prompt);
    const Draw output(g.output);
    for (std::uint64_t i = 0; i < g.count; ++i) {
      ServingRequest& r = requests.emplace_back();
      r.prompt_tokens = prompt(prompts);
      r.output_tokens = output(outputs);
    }
  }
  if (w.groups.size() > 1) {
    Random order(seed, OrderStream);
    for (std::size_t i = requests.size(); i > 1; --i) {
      std::swap(requests[i - 1], requests[order.below(static_cast<std::uint32_t>(i))]);
    }
  }
  return requests;
}

ServedRequests from_trace(const ServedWorkload& w, const std::filesystem::path& traces,
                          std::uint64_t number) {
  simulate::RequestFileOptions options;
  if (number < w.arrival_columns.size()) options.arrival_column = w.arrival_columns[number];
  options.output_tokens = w.output ? 1 : 0;
  const auto source = simulate::open_requests(traces / w.trace, options);
  ServedRequests served;
  while (auto r = source->next()) served.requests.push_back(*std::move(r));
  served.block_tokens = source->block_tokens();
  if (w.output) {
    Random outputs(seed, simulate::OutputStream);
    const Draw output(*w.output);
    for (ServingRequest& r : served.requests) r.output_tokens = output(outputs);
  }
  return served;
}

}  // namespace

double unlimited_mean(double mean, std::uint64_t most) {
  // The sum over k below `most` of the chance exp(-k / m) that there are more than k tokens.
  const auto limited = [&](double m) {
    return (1 - simulate::portable_exp(-static_cast<double>(most) / m)) /
           (1 - simulate::portable_exp(-1 / m));
  };
  double low = 1e-3;
  double high = 1e9;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (limited(middle) < mean ? low : high) = middle;
  }
  return high;
}

ServedRequests served_requests(const ServedWorkload& w, const std::filesystem::path& traces,
                               std::uint64_t number, const std::optional<double>& rate) {
  ServedRequests served;
  if (w.trace.empty()) {
    served.requests = generated(w);
  } else {
    served = from_trace(w, traces, number);
  }
  if (w.arrivals) {
    simulate::Arrivals arrivals = *w.arrivals;
    if (rate) arrivals.rate = *rate;
    simulate::ArrivalClock clock(arrivals, served.requests.size(), seed + number);
    for (ServingRequest& r : served.requests) r.arrival_s = clock.next();
  }
  for (std::size_t i = 0; i < served.requests.size(); ++i) served.requests[i].id = i;
  return served;
}

}  // namespace kvcast::measure
