/// Runs timed in rounds until their medians have settled, of a machine in one state where asked.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace kvcast::measure {

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

/// The rates of a machine over those that its hardware file gives it: 1 as calibrated.
struct MachineState {
  double compute = 1;  ///< multiply-adds in registers
  double memory = 1;   ///< streaming reads

  /// Neither is further than `tolerance` from 1.
  bool is_within(double tolerance) const;
};

/// How often, for the rounds of one row, a machine in another state is waited for, and how many
/// rounds are run again because it left its state. Then they count as they come.
inline constexpr unsigned most_looks_again = 30;
inline constexpr unsigned most_discarded = 12;

/// Keeps rounds to the state that a machine was calibrated in. On a shared host memory may be half
/// as fast again for a while: reports/studies/validation.
struct Steadiness {
  std::function<MachineState()> look;
  double tolerance = 0;                   ///< 0.1: a tenth more or less will do
  std::chrono::milliseconds pause{1000};  ///< between two looks at a machine in another state
  unsigned looks_again = most_looks_again;
  /// Told once, before a round, of a machine that does not come back; null: nobody is.
  std::function<void(const MachineState&)> on_lost = nullptr;
};

struct MeasuredRounds {
  Rounds ttft;
  Rounds tpot;  ///< empty where nothing was decoded
  /// Means of the looks before and behind each round; empty without Steadiness.
  std::vector<MachineState> states;
  unsigned discarded = 0;  ///< rounds that do not count
  unsigned unsteady = 0;   ///< rounds that count although the machine was in another state

  /// The larger spread of the two.
  double spread() const;
  /// No spread is above measure::settled, 20 %, the limit of calibrate and of its --import. Of
  /// normal times that spread so far the median of 3 has a standard error of 16 % (order
  /// statistics: a range of 1.69 sigma, a median's error of 0.67 sigma), that of 12 one of 6 %. On
  /// an idle machine the whole range of 5 runs is 5 to 13 %: reports/studies/kvr-measured.
  bool settled() const;
  /// Medians over the rounds. At least one of them, with Steadiness.
  MachineState state() const;
};

/// How often as many rounds again are added to those that have not settled.
inline constexpr unsigned most_additions = 3;

/// `rounds` runs, and as many again while they have not settled. All of them count: with an outlier
/// among three the quartiles are far apart, with one or two among six or nine no longer.
/// `steadiness`: may be null.
MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run,
                              const Steadiness* steadiness = nullptr);

}  // namespace kvcast::measure
