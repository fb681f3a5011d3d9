#include "measure/rounds.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

/// Runs whose TTFTs are these, one after the other.
MeasuredRounds measured(const std::vector<double>& ttft_s, const std::vector<double>& tpot_s = {}) {
  std::size_t next = 0;
  return measure_rounds(static_cast<unsigned>(ttft_s.size()), [&]() -> RunSeconds {
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

TEST_CASE("rounds: one slow round of five does not count, of three it does") {
  // Quartiles of 1 1.01 1.02 1.02 9 are 1.01 and 1.02; of 1 1.02 9 they are 1.01 and 5.01.
  const MeasuredRounds five = measured({1.02, 9, 1, 1.01, 1.02});
  CHECK(five.ttft.median() == near(1.02));
  CHECK(five.spread() == near(0.01 / 1.02));
  CHECK(five.settled());
  const MeasuredRounds three = measured({1.02, 9, 1});
  CHECK(three.spread() == near(4 / 1.02));
  CHECK_FALSE(three.settled());
}

TEST_CASE("rounds: a TPOT that spreads too far has not settled either") {
  // Quartiles 0.1 and 0.15 of a median of 0.1.
  const MeasuredRounds m = measured({1, 1, 1}, {0.1, 0.2, 0.1});
  CHECK(m.tpot.seconds.size() == 3);
  CHECK(m.tpot.median() == 0.1);
  CHECK(m.spread() == near(0.5));
  CHECK_FALSE(m.settled());
}

}  // namespace
}  // namespace kvcast::measure
