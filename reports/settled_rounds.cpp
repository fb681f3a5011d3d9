#include "reports/settled_rounds.h"

#include <algorithm>
#include <cmath>

#include "model/error.h"
#include "roofline/calibration.h"

namespace kvcast::reports {
namespace {

/// `share` of the way from the smallest to the largest, linear between neighbours.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

std::vector<double> sorted(std::vector<double> values) {
  KVCAST_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

double Rounds::median() const { return quantile(sorted(seconds), 0.5); }

double Rounds::spread() const {
  const std::vector<double> s = sorted(seconds);
  return (quantile(s, 0.75) - quantile(s, 0.25)) / quantile(s, 0.5);
}

double MeasuredRounds::spread() const {
  return std::max(ttft.spread(), tpot.seconds.empty() ? 0.0 : tpot.spread());
}

bool MeasuredRounds::settled() const { return spread() <= roofline::settled; }

MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run) {
  KVCAST_ASSERT(rounds > 0);
  MeasuredRounds m;
  for (unsigned addition = 0; addition <= most_additions; ++addition) {
    for (unsigned round = 0; round < rounds; ++round) {
      const RunSeconds s = run();
      m.ttft.seconds.push_back(s.ttft_s);
      if (s.tpot_s > 0) m.tpot.seconds.push_back(s.tpot_s);
    }
    if (m.settled()) break;
  }
  return m;
}

}  // namespace kvcast::reports
