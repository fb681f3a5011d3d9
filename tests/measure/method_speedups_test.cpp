#include "measure/method_speedups.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

struct Times {
  double measured;
  double predicted;
};

ValidationCase timed(const std::string& method, std::uint64_t prompt_len, Times times,
                     Metric metric = Metric::Ttft, const std::string& hardware = "here") {
  ValidationCase c;
  c.row.model = "pythia-160m";
  c.row.hardware = hardware;
  c.row.method = method;
  c.row.size = {2, prompt_len, 9};
  c.metric = metric;
  c.measured = times.measured;
  c.predicted = times.predicted;
  return c;
}

TEST_CASE("speed-ups: a method's over the plain row of the same point, with their errors") {
  const std::vector<ValidationCase> cases{
      timed("plain", 64, {8, 6}), timed("plain", 384, {90, 100}),
      // 2 times as fast, forecast 3 times; then 4.5 times, forecast 4: means 3 and sqrt(12).
      timed("random-prune:keep=0.5", 64, {4, 2}), timed("random-prune:keep=0.25", 384, {20, 25}),
      // No plain row of this metric.
      timed("slim", 64, {1, 1}, Metric::Tpot)};
  const auto s = speedups_over_plain(cases);
  REQUIRE(s.size() == 1);
  CHECK(s[0].method == "random-prune");
  CHECK(s[0].metric == Metric::Ttft);
  CHECK(s[0].measured == near(3));
  CHECK(s[0].predicted == near(std::sqrt(12.0)));
  CHECK(s[0].errors.rows == 2);
  // 3 / 2 - 1 and 4 / 4.5 - 1
  CHECK(s[0].errors.worst == near(0.5));
  CHECK(s[0].errors.mape == near((0.5 + 1.0 / 9) / 2));
}

TEST_CASE("speed-ups: a prefill with logits of all positions stands beside plain's with them") {
  std::vector<ValidationCase> cases{timed("plain", 64, {8, 8}), timed("plain", 64, {12, 12}),
                                    timed("kvp", 64, {4, 4}), timed("kvp", 64, {4, 4})};
  cases[1].row.logits = cases[3].row.logits = Logits::All;
  const auto s = speedups_over_plain(cases);
  REQUIRE(s.size() == 1);
  CHECK(s[0].errors.rows == 2);
  CHECK(s[0].measured == near(std::sqrt(2.0 * 3)));
}

TEST_CASE("speed-ups: each metric has its own") {
  const std::vector<ValidationCase> cases{
      timed("plain", 64, {8, 8}), timed("plain", 64, {0.3, 0.3}, Metric::Tpot),
      timed("slim", 64, {8, 8}), timed("slim", 64, {0.2, 0.1}, Metric::Tpot)};
  const auto s = speedups_over_plain(cases);
  REQUIRE(s.size() == 2);
  CHECK(s[0].measured == near(1));
  CHECK(s[1].metric == Metric::Tpot);
  CHECK(s[1].measured == near(1.5));
  CHECK(s[1].errors.mape == near(1));
}

TEST_CASE("speed-ups: other devices, sizes and kernels, and several plain rows, give none") {
  std::vector<ValidationCase> cases{timed("slim", 64, {8, 8}), timed("plain", 65, {8, 8}),
                                    timed("plain", 64, {8, 8}, Metric::Ttft, "there"),
                                    timed("plain", 64, {8, 8})};
  cases.back().row.lowering.attention = Kernels::Eager;
  cases.front().row.lowering.attention = Kernels::Fused;
  CHECK(speedups_over_plain(cases).empty());
  cases.push_back(timed("plain", 64, {8, 8}));
  cases.back().row.lowering.attention = Kernels::Fused;
  CHECK(speedups_over_plain(cases).size() == 1);
  cases.push_back(cases.back());
  CHECK(speedups_over_plain(cases).empty());
}

TEST_CASE("speed-ups: ranks stand beside the one process of their machine") {
  std::vector<ValidationCase> cases{timed("plain", 64, {8, 6}),
                                    timed("slim", 64, {5, 4}, Metric::Ttft, "ranks")};
  CHECK(speedups_over_plain(cases).empty());
  cases.back().row.method = "kvr:p=2";
  const auto s = speedups_over_plain(cases);
  REQUIRE(s.size() == 1);
  CHECK(s[0].method == "kvr");
  CHECK(s[0].measured == near(1.6));
  CHECK(s[0].predicted == near(1.5));
  // A plain row of the ranks' own device is nearer.
  cases.push_back(timed("plain", 64, {10, 8}, Metric::Ttft, "ranks"));
  CHECK(speedups_over_plain(cases).at(0).measured == near(2));
}

}  // namespace
}  // namespace kvcast::measure
