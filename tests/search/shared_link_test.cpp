#include "search/shared_link.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

using namespace kvcast::search;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();
using Times = std::vector<double>;

Times exact(const Times& starts, const Times& bytes) {
  Times ends(starts.size());
  share_link(starts, bytes, 1, ends);
  return ends;
}

Times earliest(const Times& from, const Times& to, const Times& bytes) {
  Times ends(from.size());
  SharedLinkBounds().earliest_ends(from, to, bytes, 1, ends);
  return ends;
}

Times latest(const Times& from, const Times& to, const Times& bytes) {
  Times ends(from.size());
  SharedLinkBounds().latest_ends(from, to, bytes, 1, ends);
  return ends;
}

/// A whole number below `end`.
double below(std::mt19937& random, unsigned end) { return static_cast<double>(random() % end); }

}  // namespace

TEST_CASE("shared link: one message, two that overlap, and one that overtakes") {
  CHECK(exact({3}, {8}) == Times{11});
  // The first has 2 of 8 bytes done when the second joins: 6 more at half the rate; then the
  // second's last 2 alone.
  CHECK(exact({0, 2}, {8, 8}) == Times{14, 16});
  // The second's 3 bytes at half the rate end at 8, and the first's last 3 at 11.
  CHECK(exact({0, 2}, {8, 3}) == Times{11, 8});
}

TEST_CASE("shared link: a message ends early if those behind it start late, and only then") {
  // Alone it would end at 8; with a second that starts at 4 or before, at 12 or later.
  CHECK(earliest({0, 2}, {0, never}, {8, 8})[0] == 8);
  CHECK(earliest({0, 2}, {0, 4}, {8, 8})[0] == 12);
  // The second ends when the link has moved all 16 bytes, whenever it starts.
  CHECK(earliest({0, 2}, {0, 4}, {8, 8})[1] == 16);
  CHECK(latest({0, 2}, {0, 4}, {8, 8})[0] == 14);
  // At 4 the first one has moved 3 bytes or more, so that 5 or fewer are left beside the 8.
  CHECK(latest({0, 2}, {0, 4}, {8, 8})[1] == 17);
}

TEST_CASE("shared link: bounds are exact for windows that are points") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Times starts;
    Times bytes;
    double now = 0;
    for (int l = 0; l < 9; ++l) {
      now += below(random, 4);
      starts.push_back(now);
      bytes.push_back(1 + below(random, 6));
    }
    const Times ends = exact(starts, bytes);
    const Times from = earliest(starts, starts, bytes);
    const Times to = latest(starts, starts, bytes);
    for (std::size_t l = 0; l < ends.size(); ++l) {
      INFO(round, " ", l);
      CHECK(from[l] == kvcast::near(ends[l]));
      CHECK(to[l] == kvcast::near(ends[l]));
    }
  }
}

TEST_CASE("shared link: no starts within their windows end sooner or later than the bounds") {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const bool equal = round % 2 == 0;
    Times from;
    Times to;
    Times bytes;
    double now = 0;
    for (int l = 0; l < 7; ++l) {
      now += below(random, 5);
      from.push_back(now);
      to.push_back(std::max(to.empty() ? 0 : to.back(), now + below(random, 8)));
      bytes.push_back(equal ? 6 : 1 + below(random, 9));
    }
    const Times soonest = earliest(from, to, bytes);
    const Times last = latest(from, to, bytes);
    for (int trial = 0; trial < 20; ++trial) {
      Times starts;
      for (std::size_t l = 0; l < from.size(); ++l) {
        const double low = std::max(from[l], starts.empty() ? 0 : starts.back());
        // Often at an end of its window, where bounds are reached.
        const double share = std::min(1.0, std::max(0.0, below(random, 1000) / 500 - 0.5));
        starts.push_back(low + share * (to[l] - low));
      }
      const Times ends = exact(starts, bytes);
      for (std::size_t l = 0; l < ends.size(); ++l) {
        INFO(round, " ", trial, " ", l);
        CHECK(soonest[l] <= ends[l] * (1 + 1e-12));
        CHECK(last[l] >= ends[l] * (1 - 1e-12));
      }
    }
  }
}
