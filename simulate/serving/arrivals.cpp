#include "simulate/serving/arrivals.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "simulate/serving/distributions.h"
#include "simulate/serving/option_text.h"

namespace kvcast::simulate {
namespace {

// Ours: what is outside is a slip.
constexpr double longest_think_s = 1e9;
constexpr std::uint64_t most_users = std::uint64_t{1} << 31;
/// Below, most gaps are too small for a number.
constexpr double least_burstiness = 0.01;
constexpr double most_burstiness = 1e6;

constexpr Words<ArrivalKind, 5> arrival_words{{{ArrivalKind::Poisson, "poisson"},
                                               {ArrivalKind::Gamma, "gamma"},
                                               {ArrivalKind::Uniform, "uniform"},
                                               {ArrivalKind::Burst, "burst"},
                                               {ArrivalKind::Closed, "closed"}}};

/// A source's requests with the times of a clock.
class Rescheduled : public RequestSource {
 public:
  Rescheduled(std::unique_ptr<RequestSource> requests, const ArrivalClock& clock)
      : requests_(std::move(requests)), clock_(clock) {}

  std::optional<ServingRequest> next() override {
    std::optional<ServingRequest> request = requests_->next();
    if (request) request->arrival_s = clock_.next();
    return request;
  }
  std::uint64_t block_tokens() const override { return requests_->block_tokens(); }
  std::uint64_t num_failed() const override { return requests_->num_failed(); }

 private:
  std::unique_ptr<RequestSource> requests_;
  ArrivalClock clock_;
};

}  // namespace

Arrivals parse_arrivals(std::string_view text, const std::string& place) {
  const OptionText options(text, place);
  Arrivals arrivals;
  arrivals.kind = options.kind("arrivals", arrival_words);
  const bool random = arrivals.kind == ArrivalKind::Poisson || arrivals.kind == ArrivalKind::Gamma;
  if (random || arrivals.kind == ArrivalKind::Uniform) {
    arrivals.rate = options.number("rate", least_rate, most_rate);
  }
  if (random) arrivals.rescale = options.flag("rescale", false);
  if (arrivals.kind == ArrivalKind::Gamma) {
    arrivals.burstiness = options.number("burstiness", least_burstiness, most_burstiness);
  }
  if (arrivals.kind == ArrivalKind::Closed) {
    arrivals.users = options.whole("users", 1, most_users);
    arrivals.think_s = options.number("think", 0, longest_think_s, 0);
  }
  options.reject_unknown();
  return arrivals;
}

std::string to_string(const Arrivals& a) {
  std::string text(word_for(a.kind, arrival_words));
  switch (a.kind) {
    case ArrivalKind::Poisson:
    case ArrivalKind::Uniform: text += fmt::format(":rate={}", a.rate); break;
    case ArrivalKind::Gamma:
      text += fmt::format(":rate={},burstiness={}", a.rate, a.burstiness);
      break;
    case ArrivalKind::Burst: break;
    case ArrivalKind::Closed:
      text += fmt::format(":users={}", a.users);
      if (a.think_s > 0) text += fmt::format(",think={}", a.think_s);
      break;
  }
  return a.rescale ? text + ",rescale=true" : text;
}

std::optional<ClosedLoop> closed_loop(const Arrivals& arrivals) {
  if (arrivals.kind != ArrivalKind::Closed) return std::nullopt;
  return ClosedLoop{arrivals.users, arrivals.think_s};
}

ArrivalClock::ArrivalClock(const Arrivals& arrivals, std::uint64_t count, std::uint64_t seed)
    : arrivals_(arrivals), count_(count), random_(seed, ArrivalStream) {
  if (!arrivals.rescale) return;
  if (count == 0) {
    throw Error("rescaled arrivals of an unknown number of requests; expected their number");
  }
  // The same gaps twice, so that none has to be kept.
  double end_s = 0;
  for (std::uint64_t i = 0; i < count; ++i) end_s += gap_s();
  scale_ = end_s > 0 ? last_s() / end_s : 0;
  random_ = Random(seed, ArrivalStream);
}

double ArrivalClock::next() {
  ++number_;
  if (arrivals_.kind == ArrivalKind::Burst || arrivals_.kind == ArrivalKind::Closed) return 0;
  if (arrivals_.kind == ArrivalKind::Uniform) return static_cast<double>(number_) / arrivals_.rate;
  now_s_ += gap_s();
  if (!arrivals_.rescale || number_ > count_) return now_s_ * scale_;
  // Rounding must neither move the last nor put another behind it.
  return number_ == count_ ? last_s() : std::min(now_s_ * scale_, last_s());
}

double ArrivalClock::gap_s() {
  // The same numbers for a Poisson process, however it is written.
  if (arrivals_.kind == ArrivalKind::Poisson || arrivals_.burstiness == 1) {
    return exponential(random_) / arrivals_.rate;
  }
  return gamma(random_, arrivals_.burstiness) / (arrivals_.burstiness * arrivals_.rate);
}

std::unique_ptr<RequestSource> with_arrivals(std::unique_ptr<RequestSource> requests,
                                             const Arrivals& arrivals, std::uint64_t count,
                                             std::uint64_t seed) {
  return std::make_unique<Rescheduled>(std::move(requests), ArrivalClock(arrivals, count, seed));
}

}  // namespace kvcast::simulate
