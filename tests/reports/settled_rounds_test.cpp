#include "reports/settled_rounds.h"

#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

namespace kvcast::reports {
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
  CHECK(Rounds{{5, 1, 3, 2, 4}}.spread() == doctest::Approx(2.0 / 3));
  CHECK(Rounds{{20, 10, 12}}.median() == 12);
  CHECK(Rounds{{20, 10, 12}}.spread() == doctest::Approx(5.0 / 12));
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
  CHECK(m.ttft.median() == doctest::Approx(1.015));
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
  CHECK(m.spread() == doctest::Approx(1));
}

}  // namespace
}  // namespace kvcast::reports
