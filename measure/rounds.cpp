#include "measure/rounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "measure/calibration.h"
#include "model/base/error.h"
#include "model/base/order_statistics.h"
#include "model/io/files/number_text.h"

namespace kvcast::measure {

double Rounds::median() const { return seconds.empty() ? no_value : kvcast::median(seconds); }

double Rounds::spread() const {
  if (seconds.empty()) return no_value;
  return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median();
}

double MeasuredRounds::spread() const { return std::fmax(ttft.spread(), tpot.spread()); }

bool MeasuredRounds::settled() const { return spread() <= measure::settled; }

MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run) {
  KVCAST_ASSERT(rounds > 0);
  MeasuredRounds m;
  for (unsigned round = 0; round < rounds; ++round) {
    const RunSeconds s = run();
    m.ttft.seconds.push_back(s.ttft_s);
    if (s.tpot_s > 0) m.tpot.seconds.push_back(s.tpot_s);
  }
  return m;
}

TimedRuns time_runs(unsigned rounds, const std::function<execute::RankRun()>& run) {
  if (rounds > 0) run();
  std::vector<execute::RankRun> runs;
  TimedRuns timed;
  timed.rounds = measure_rounds(std::max(rounds, 1U), [&]() -> RunSeconds {
    const execute::Generation& g = runs.emplace_back(run()).generation;
    return {g.ttft_s, g.decode_steps > 0 ? g.tpot_s : 0};
  });
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>((runs.size() - 1) / 2);
  std::nth_element(runs.begin(), middle, runs.end(), [](const auto& a, const auto& b) {
    return a.generation.ttft_s < b.generation.ttft_s;
  });
  timed.run = std::move(*middle);
  execute::Generation& g = timed.run.generation;
  g.ttft_s = timed.rounds.ttft.median();
  if (!timed.rounds.tpot.seconds.empty()) g.tpot_s = timed.rounds.tpot.median();
  return timed;
}

}  // namespace kvcast::measure
