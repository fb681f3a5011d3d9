/// Runs timed in rounds until their medians have settled.
#pragma once

#include <functional>
#include <vector>

namespace kvcast::reports {

/// What one run took; `tpot_s` is 0 where nothing was decoded.
struct RunSeconds {
  double ttft_s = 0;
  double tpot_s = 0;
};

/// One time over the rounds. At least one of them.
struct Rounds {
  std::vector<double> seconds;

  double median() const;
  /// The middle half of the rounds (the distance of their quartiles, linear between neighbours)
  /// over their median, as calibrate --import takes it: few slow rounds among many do not count. 0
  /// of one round.
  double spread() const;
};

struct MeasuredRounds {
  Rounds ttft;
  Rounds tpot;  ///< empty where nothing was decoded

  /// The larger spread of the two.
  double spread() const;
  /// No spread is above roofline::settled, 20 %, the limit of calibrate and of its --import. Of
  /// normal times that spread so far the median of 3 has a standard error of 16 % (order
  /// statistics: a range of 1.69 sigma, a median's error of 0.67 sigma), that of 12 one of 6 %. On
  /// an idle machine the whole range of 5 runs is 5 to 13 %: reports/kvr-measured.
  bool settled() const;
};

/// How often as many rounds again are added to those that have not settled.
inline constexpr unsigned most_additions = 3;

/// `rounds` runs, and as many again while they have not settled. All of them count: with an outlier
/// among three the quartiles are far apart, with one or two among six or nine no longer.
MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run);

}  // namespace kvcast::reports
