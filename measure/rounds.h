/// Timed runs on noisy hosts: one warm-up run, then N timed runs. Their medians count, and their
/// spread shows whether the host was too noisy. Calibrations of different times are combined by
/// median too (combined_calibration.h).
#pragma once

#include <functional>
#include <vector>

#include "model/execute/rank_run.h"

namespace kvcast::measure {

/// The times of one run; `tpot_s` is 0 where nothing was decoded.
struct RunSeconds {
  double ttft_s = 0;
  double tpot_s = 0;
};

/// One time over the rounds. Without rounds there is no_value of it.
struct Rounds {
  std::vector<double> seconds;

  double median() const;
  /// The middle half of the rounds (the distance of their quartiles, linear between neighbours)
  /// over their median, as calibrate --import takes it. 0 of one round. One slow round of five does
  /// not count.
  double spread() const;
};

struct MeasuredRounds {
  Rounds ttft;
  Rounds tpot;  ///< empty where nothing was decoded

  /// The larger spread of the two.
  double spread() const;
  /// No spread is above measure::settled, 20 %, the limit of calibrate and of its --import. Of
  /// normal times that spread so far the median of 5 has a standard error of 10 % (quartiles 1.35
  /// sigma apart, a median's error of 0.54 sigma). On an idle machine the whole range of 5 runs is
  /// 5 to 13 %: reports/studies/kvr-measured.
  bool settled() const;
};

/// `rounds` runs, at least one.
MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run);

struct TimedRuns {
  execute::RankRun run;   ///< the run with the median TTFT; its times are the medians
  MeasuredRounds rounds;  ///< of a rank without decode steps, `tpot` is empty
};

/// `rounds` timed runs after one warm-up run; 0: one run without a warm-up.
TimedRuns time_runs(unsigned rounds, const std::function<execute::RankRun()>& run);

}  // namespace kvcast::measure
