#include "measure/timed_runs.h"

#include <algorithm>
#include <vector>

namespace kvcast::measure {

TimedRuns time_runs(unsigned rounds, const std::function<execute::RankRun()>& run) {
  if (rounds > 0) run();
  std::vector<execute::RankRun> runs;
  TimedRuns timed;
  for (unsigned round = 0; round < std::max(rounds, 1U); ++round) {
    runs.push_back(run());
    const execute::Generation& g = runs.back().generation;
    timed.rounds.ttft.seconds.push_back(g.ttft_s);
    if (g.decode_steps > 0) timed.rounds.tpot.seconds.push_back(g.tpot_s);
  }
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
