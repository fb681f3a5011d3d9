#include "measure/settled_rounds.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

/// Runs whose TTFTs are these, one after the other.
MeasuredRounds measured(std::vector<double> ttft_s, std::vector<double> tpot_s = {}) {
  std::size_t next = 0;
  return measure_rounds(3, [&]() -> RunSeconds {
    REQUIRE(next < ttft_s.size());
    const std::size_t i = next++;
    return {ttft_s[i], i < tpot_s.size() ? tpot_s[i] : 0};
  });
}

TEST_CASE("rounds: the spread is the middle half over the median") {
  // Quartiles of 1 2 3 4 5 are 2 and 4; of 10 12 20 the places 0.5 and 1.5: 11 and 16.
  CHECK(Rounds{{5, 1, 3, 2, 4}}.median() == 3);
  CHECK(Rounds{{5, 1, 3, 2, 4}}.spread() == near(2.0 / 3));
  CHECK(Rounds{{20, 10, 12}}.median() == 12);
  CHECK(Rounds{{20, 10, 12}}.spread() == near(5.0 / 12));
  CHECK(Rounds{{1, 2, 3, 4}}.median() == 2.5);
  CHECK(Rounds{{7}}.spread() == 0);
}

TEST_CASE("rounds: three that agree are enough") {
  // Quartiles 1.0 and 1.2 of a median of 1.1: 18 %.
  const MeasuredRounds m = measured({0.9, 1.3, 1.1});
  CHECK(m.ttft.seconds.size() == 3);
  CHECK(m.tpot.seconds.empty());
  CHECK(m.ttft.median() == 1.1);
  CHECK(m.settled());
}

TEST_CASE("rounds: an outlier asks for more of them, which outweigh it") {
  // Of three the quartiles are 1.01 and 5.01; of
  // 1 1 1.01 1.02 1.02 9 they are 1.0025 and 1.02.
  const MeasuredRounds m = measured({1.02, 9, 1, 1, 1.01, 1.02});
  CHECK(m.ttft.seconds.size() == 6);
  CHECK(m.ttft.median() == near(1.015));
  CHECK(m.settled());
}

TEST_CASE("rounds: a TPOT that has not settled asks for more too") {
  const MeasuredRounds m = measured({1, 1, 1, 1, 1, 1}, {0.1, 0.2, 0.1, 0.1, 0.1, 0.1});
  CHECK(m.tpot.seconds.size() == 6);
  CHECK(m.tpot.median() == 0.1);
  CHECK(m.settled());
}

TEST_CASE("rounds: what never settles ends after three additions and says so") {
  const MeasuredRounds m = measured({1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  CHECK(m.ttft.seconds.size() == 12);
  CHECK_FALSE(m.settled());
  // Quartiles of 1 1 1 1 2 2 2 2 3 3 3 3 at the places 2.75 and 8.25: 1 and 3.
  CHECK(m.spread() == near(1));
}

/// Rounds of 101, 102, 103 ... s, with these rates of memory looked at one after the other and then
/// the last one for ever.
MeasuredRounds watched(unsigned rounds, const std::vector<double>& memory, std::size_t& looks) {
  looks = 0;
  double next_s = 100;
  const Steadiness steadiness{[&]() -> MachineState {
                                const std::size_t look = std::min(looks++, memory.size() - 1);
                                return {1, memory[look]};
                              },
                              0.1, std::chrono::milliseconds(0)};
  return measure_rounds(
      rounds,
      [&]() -> RunSeconds {
        return {++next_s, 0};
      },
      &steadiness);
}

TEST_CASE("rounds: those between two looks at the machine as calibrated count") {
  std::size_t looks = 0;
  // One look before the first round and one behind each.
  const MeasuredRounds steady = watched(2, {0.95, 1.05, 1.09}, looks);
  CHECK(steady.ttft.seconds == std::vector<double>{101, 102});
  CHECK(looks == 3);
  CHECK(steady.discarded == 0);
  CHECK(steady.unsteady == 0);
  REQUIRE(steady.states.size() == 2);
  CHECK(steady.states[0].memory == near(1));
  CHECK(steady.state().memory == near((1 + 1.07) / 2));

  // It is waited for at first; then the machine leaves its state during the first round.
  const MeasuredRounds left = watched(1, {1.5, 1.4, 1, 0.8, 0.85, 0.95, 1}, looks);
  CHECK(left.ttft.seconds == std::vector<double>{102});
  CHECK(left.discarded == 1);
  CHECK(looks == 7);
  CHECK(left.state().is_within(0.1));
}

TEST_CASE("rounds: a machine that stays in another state is waited for no longer than it says") {
  std::size_t looks = 0;
  const MeasuredRounds other = watched(1, {1.5}, looks);
  CHECK(other.ttft.seconds == std::vector<double>{101});
  CHECK(other.discarded == 0);
  CHECK(other.unsteady == 1);
  CHECK(looks == 1 + most_looks_again + 1);
  CHECK(other.state().memory == 1.5);
  CHECK_FALSE(other.state().is_within(0.1));
  CHECK_FALSE(MachineState{0.85, 1}.is_within(0.1));
}

TEST_CASE("rounds: who asks is told once, before a round, of a machine that does not come back") {
  unsigned looks = 0;
  unsigned runs = 0;
  std::vector<unsigned> told;  // after so many runs
  const Steadiness steadiness{.look = [&]() -> MachineState {
                                ++looks;
                                return {1, 2};
                              },
                              .tolerance = 0.1,
                              .pause = std::chrono::milliseconds(0),
                              .looks_again = 3,
                              .on_lost =
                                  [&](const MachineState& state) {
                                    CHECK(state.memory == 2);
                                    told.push_back(runs);
                                  }};
  const MeasuredRounds m = measure_rounds(
      2,
      [&]() -> RunSeconds {
        ++runs;
        return {1, 0};
      },
      &steadiness);
  CHECK(m.unsteady == 2);
  CHECK(told == std::vector<unsigned>{0});
  CHECK(looks == 1 + 3 + 2);
}

TEST_CASE("rounds: a machine that leaves its state with every round has them counted in the end") {
  std::size_t looks = 0;
  // As calibrated before each round, not behind it, and so on.
  std::vector<double> memory;
  for (unsigned i = 0; i < 2 * most_discarded + 2; ++i) memory.push_back(i % 2 == 0 ? 1 : 2);
  const MeasuredRounds left = watched(1, memory, looks);
  CHECK(left.ttft.seconds == std::vector<double>{101.0 + most_discarded});
  CHECK(left.discarded == most_discarded);
  CHECK(left.unsteady == 1);
  CHECK(left.state().memory == 1.5);
}

}  // namespace
}  // namespace kvcast::measure
