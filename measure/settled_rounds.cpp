#include "measure/settled_rounds.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "measure/calibration.h"
#include "model/base/error.h"
#include "model/base/order_statistics.h"

namespace kvcast::measure {
namespace {

/// Times runs between looks at the machine.
class SteadyRuns {
 public:
  SteadyRuns(const std::function<RunSeconds()>& run, const Steadiness& steadiness)
      : run_(run), steadiness_(steadiness), state_(steadiness.look()) {}

  RunSeconds next(MeasuredRounds& m) {
    for (;;) {
      wait();
      const MachineState before = state_;
      const RunSeconds seconds = run_();
      state_ = steadiness_.look();
      const bool steady = is_right(before) && is_right(state_);
      // A machine that was waited for in vain is what there is.
      if (steady || !is_right(before) || m.discarded == most_discarded) {
        if (!steady) ++m.unsteady;
        m.states.push_back(
            {(before.compute + state_.compute) / 2, (before.memory + state_.memory) / 2});
        return seconds;
      }
      ++m.discarded;
    }
  }

 private:
  bool is_right(const MachineState& state) const { return state.is_within(steadiness_.tolerance); }

  void wait() {
    for (; !is_right(state_) && looks_again_ < steadiness_.looks_again; ++looks_again_) {
      std::this_thread::sleep_for(steadiness_.pause);
      state_ = steadiness_.look();
    }
    if (is_right(state_) || lost_) return;
    lost_ = true;
    if (steadiness_.on_lost) steadiness_.on_lost(state_);
  }

  const std::function<RunSeconds()>& run_;
  const Steadiness& steadiness_;
  MachineState state_;
  unsigned looks_again_ = 0;
  bool lost_ = false;
};

}  // namespace

bool MachineState::is_within(double tolerance) const {
  return std::abs(compute - 1) <= tolerance && std::abs(memory - 1) <= tolerance;
}

double Rounds::median() const { return kvcast::median(seconds); }

double Rounds::spread() const {
  return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median();
}

double MeasuredRounds::spread() const {
  return std::max(ttft.spread(), tpot.seconds.empty() ? 0.0 : tpot.spread());
}

bool MeasuredRounds::settled() const { return spread() <= measure::settled; }

MachineState MeasuredRounds::state() const {
  std::vector<double> compute;
  std::vector<double> memory;
  for (const MachineState& s : states) {
    compute.push_back(s.compute);
    memory.push_back(s.memory);
  }
  return {kvcast::median(std::move(compute)), kvcast::median(std::move(memory))};
}

MeasuredRounds measure_rounds(unsigned rounds, const std::function<RunSeconds()>& run,
                              const Steadiness* steadiness) {
  KVCAST_ASSERT(rounds > 0);
  MeasuredRounds m;
  std::optional<SteadyRuns> steady;
  if (steadiness != nullptr) steady.emplace(run, *steadiness);
  for (unsigned addition = 0; addition <= most_additions; ++addition) {
    for (unsigned round = 0; round < rounds; ++round) {
      const RunSeconds s = steady ? steady->next(m) : run();
      m.ttft.seconds.push_back(s.ttft_s);
      if (s.tpot_s > 0) m.tpot.seconds.push_back(s.tpot_s);
    }
    if (m.settled()) break;
  }
  return m;
}

}  // namespace kvcast::measure
