/// A request run several times, for its times.
#pragma once

#include <functional>

#include "measure/settled_rounds.h"
#include "model/execute/rank_run.h"

namespace kvcast::measure {

struct TimedRuns {
  execute::RankRun run;            ///< the one with the middle TTFT, with the medians as its times
  measure::MeasuredRounds rounds;  ///< of a rank without decode steps, `tpot` is empty
};

/// `rounds` runs behind one that does not count; 0: the first one counts, and is the only one.
TimedRuns time_runs(unsigned rounds, const std::function<execute::RankRun()>& run);

}  // namespace kvcast::measure
