#include "simulate/serving/arrivals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/serving/distributions.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

std::vector<double> arrivals_of(const std::string& text, std::uint64_t count,
                                std::uint64_t seed = 42) {
  ArrivalClock clock(parse_arrivals(text, "--arrivals"), count, seed);
  std::vector<double> times;
  for (std::uint64_t i = 0; i < count; ++i) times.push_back(clock.next());
  return times;
}

struct Gaps {
  double mean = 0;
  double variation = 0;  ///< coefficient of
  double median = 0;
};

Gaps gaps_of(const std::string& text, std::uint64_t count) {
  std::vector<double> gaps = arrivals_of(text, count);
  std::adjacent_difference(gaps.begin(), gaps.end(), gaps.begin());
  CHECK(*std::min_element(gaps.begin(), gaps.end()) >= 0);
  const auto n = static_cast<double>(count);
  Gaps result;
  for (const double gap : gaps) result.mean += gap / n;
  double variance = 0;
  for (const double gap : gaps) variance += (gap - result.mean) * (gap - result.mean) / n;
  result.variation = std::sqrt(variance) / result.mean;
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  result.median = *middle;
  return result;
}

void check_equal(const std::vector<double>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(values[i] == near(expected[i]).epsilon(1e-14));
  }
}

TEST_CASE("distributions: logarithm and exponential are right to a few roundings") {
  Random random(5, 0);
  double worst_log = 0;
  double worst_exp = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = 1 - random.uniform();
    for (const double x : {u, 1 / u, 1 + u * 1e-6, 1 - u * 1e-9, std::ldexp(u, -900)}) {
      const double log = std::log(x);
      if (log == 0) continue;
      worst_log = std::max(worst_log, std::abs(portable_log(x) / log - 1));
    }
    const double x = (u - 0.5) * 40;
    worst_exp = std::max(worst_exp, std::abs(portable_exp(x) / std::exp(x) - 1));
  }
  CHECK(worst_log < 8e-16);
  CHECK(worst_exp < 20 * 2e-16 + 1e-15);
  CHECK(portable_log(1) == 0);
  CHECK(portable_exp(0) == 1);
  CHECK(portable_exp(-1e9) == 0);
  CHECK(portable_exp(1e9) == std::numeric_limits<double>::infinity());
  CHECK(portable_exp(-740) == near(std::exp(-740)).epsilon(0.01));
}

// From a program in Python that knows only the papers, SplitMix64 and the order of the draws, with
// Python's own logarithm and power.
TEST_CASE("arrivals: a seed gives the same times everywhere") {
  const std::vector<double> poisson{1.2471303698166796, 1.5136152804285952, 1.5415087787194848,
                                    1.993445626423116, 2.0214045138422425};
  check_equal(arrivals_of("poisson:rate=2.5", 5), poisson);
  check_equal(arrivals_of("gamma:rate=2.5,burstiness=1", 5), poisson);
  check_equal(arrivals_of("poisson:rate=2.5,rescale=true", 5),
              {1.2339245918137987, 1.4975877119731444, 1.5251858479225593, 1.972337167323345, 2});
  check_equal(arrivals_of("gamma:rate=2.5,burstiness=0.25", 5),
              {0.028406413128321616, 0.06186193251829633, 0.06193662110062823, 0.13532967733138856,
               0.13673507747736352});
  check_equal(arrivals_of("gamma:rate=2.5,burstiness=4", 5),
              {0.4956338195407611, 0.9013330018333863, 1.3330131649315025, 1.796922119614866,
               2.112297764801528});
  CHECK(arrivals_of("poisson:rate=2.5", 5) == arrivals_of("poisson:rate=2.5", 5));
  CHECK(arrivals_of("poisson:rate=2.5", 5, 43) != arrivals_of("poisson:rate=2.5", 5));
  // Half the rate: the same gaps, twice as long.
  const auto fast = arrivals_of("poisson:rate=4", 100);
  const auto slow = arrivals_of("poisson:rate=2", 100);
  for (std::size_t i = 0; i < fast.size(); ++i) CHECK(slow[i] == 2 * fast[i]);
}

TEST_CASE("arrivals: gaps have the mean, the spread and the median of their distribution") {
  constexpr std::uint64_t count = 200000;
  // Exponential with mean 1/4: the mean's deviation is 0.25 / sqrt(200000), 0.22 % of it; that of
  // the coefficient of variation is about as large. The bounds are 4 deviations and more.
  const Gaps poisson = gaps_of("poisson:rate=4", count);
  CHECK(poisson.mean == near(0.25).epsilon(0.009));
  CHECK(poisson.variation == near(1).epsilon(0.01));
  CHECK(poisson.median == near(0.25 * std::log(2)).epsilon(0.01));
  // Shape 4, CV 1/2: chi-square with 8 degrees of freedom has the median 7.344121.
  const Gaps even = gaps_of("gamma:rate=4,burstiness=4", count);
  CHECK(even.mean == near(0.25).epsilon(0.0045));
  CHECK(even.variation == near(0.5).epsilon(0.01));
  CHECK(even.median == near(0.25 * 7.344121 / 8).epsilon(0.01));
  // Shape 1/2, CV sqrt(2): chi-square with 1 degree of freedom has the median 0.454936.
  const Gaps bursty = gaps_of("gamma:rate=4,burstiness=0.5", count);
  CHECK(bursty.mean == near(0.25).epsilon(0.013));
  CHECK(bursty.variation == near(std::sqrt(2)).epsilon(0.02));
  CHECK(bursty.median == near(0.25 * 0.454936).epsilon(0.02));
  // Shape 1/16, CV 4.
  const Gaps very = gaps_of("gamma:rate=4,burstiness=0.0625", count);
  CHECK(very.mean == near(0.25).epsilon(0.04));
  CHECK(very.variation == near(4).epsilon(0.06));
}

TEST_CASE("arrivals: the other processes and rescaled ones end when they should") {
  CHECK(arrivals_of("uniform:rate=4", 4) == std::vector<double>{0.25, 0.5, 0.75, 1});
  CHECK(arrivals_of("burst", 3) == std::vector<double>{0, 0, 0});
  CHECK(arrivals_of("closed:users=2", 3) == std::vector<double>{0, 0, 0});
  for (const char* const text :
       {"poisson:rate=3,rescale=true", "gamma:rate=3,burstiness=0.3,rescale=true",
        "gamma:rate=3,burstiness=0.01,rescale=true"}) {
    CAPTURE(text);
    for (const std::uint64_t count : {1U, 7U, 1000U}) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const auto times = arrivals_of(text, count, seed);
        CHECK(times.back() == static_cast<double>(count) / 3);
        CHECK(std::is_sorted(times.begin(), times.end()));
        CHECK(times.front() >= 0);
      }
    }
  }
  CHECK(message_of([] {
          ArrivalClock(parse_arrivals("poisson:rate=3,rescale=true", "--arrivals"), 0, 1);
        }) == "rescaled arrivals of an unknown number of requests; expected their number");
}

TEST_CASE("arrivals: a trace can be given other arrivals") {
  const std::vector<ServingRequest> requests{{3, 9, 5, 6, {1, 2}}, {7, 9, 7, 8, {3, 4, 5}}};
  const auto source = with_arrivals(std::make_unique<RequestList>(requests, 2),
                                    parse_arrivals("uniform:rate=2", "--arrivals"), 0, 1);
  CHECK(source->block_tokens() == 2);
  CHECK(source->next() == ServingRequest{3, 0.5, 5, 6, {1, 2}});
  CHECK(source->next() == ServingRequest{7, 1, 7, 8, {3, 4, 5}});
  CHECK_FALSE(source->next());
}

TEST_CASE("arrivals: a closed loop has users and a time to think") {
  const auto loop = closed_loop(parse_arrivals("closed:users=8,think=2.5", "--arrivals"));
  REQUIRE(loop);
  CHECK(loop->users == 8);
  CHECK(loop->think_s == 2.5);
  CHECK(closed_loop(parse_arrivals("closed:users=1e3", "--arrivals"))->think_s == 0);
  CHECK_FALSE(closed_loop(parse_arrivals("burst", "--arrivals")));
}

TEST_CASE("arrivals: texts read back") {
  for (const char* const text :
       {"poisson:rate=2.5", "poisson:rate=0.1,rescale=true", "gamma:rate=3,burstiness=0.25",
        "gamma:rate=3,burstiness=4,rescale=true", "uniform:rate=7", "burst", "closed:users=8",
        "closed:users=8,think=0.5"}) {
    CHECK(to_string(parse_arrivals(text, "--arrivals")) == text);
  }
}

TEST_CASE("arrivals: wrong texts are refused") {
  const auto failure = [](const char* text) {
    return message_of([&] { parse_arrivals(text, "--arrivals"); });
  };
  CHECK(failure("poison:rate=3") ==
        "--arrivals: unknown arrivals 'poison'; did you mean 'poisson'?");
  check_line(failure(""), {"--arrivals: unknown arrivals ''", "poisson", "closed"});
  CHECK(failure("poisson") ==
        "--arrivals: got 'poisson' without rate, expected poisson:rate=N with a number from 1e-09 "
        "to 1e+12");
  for (const char* const rate : {"0", "-1", "nan", "inf", "x", "", "1e-10", "3/s"}) {
    CAPTURE(rate);
    const std::string text = "gamma:burstiness=1,rate=" + std::string(rate);
    CHECK(failure(text.c_str()) == "--arrivals: option 'rate': got '" + std::string(rate) +
                                       "', expected a number from 1e-09 to 1e+12");
  }
  CHECK(failure("gamma:rate=1,burstiness=0") ==
        "--arrivals: option 'burstiness': got '0', expected a number from 0.01 to 1e+06");
  CHECK(
      failure("gamma:rate=1") ==
      "--arrivals: got 'gamma' without burstiness, expected gamma:burstiness=N with a number from "
      "0.01 to 1e+06");
  CHECK(failure("poisson:rate=1,rescale=yes") ==
        "--arrivals: option 'rescale': got 'yes', expected true or false");
  CHECK(failure("poisson:rate=1,rate=2") == "--arrivals: option 'rate' given twice; expected once");
  CHECK(failure("poisson:rate=1,burstiness=2") ==
        "--arrivals: unknown option 'burstiness'; expected one of: rate, rescale");
  CHECK(failure("poisson:3") == "--arrivals: got '3' in 'poisson:3', expected KEY=VALUE");
  CHECK(failure("burst:rate=1") == "--arrivals: got options of 'burst', expected none");
  for (const char* const users : {"0", "-1", "1.5", "1e12", "nan", ""}) {
    CAPTURE(users);
    const std::string text = "closed:users=" + std::string(users);
    CHECK(failure(text.c_str()) == "--arrivals: option 'users': got '" + std::string(users) +
                                       "', expected a whole number from 1 to 2147483648");
  }
  CHECK(failure("closed:users=1,think=-1") ==
        "--arrivals: option 'think': got '-1', expected a number from 0 to 1e+09");
}

}  // namespace
}  // namespace kvcast::simulate
