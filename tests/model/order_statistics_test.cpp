#include "model/base/order_statistics.h"

#include <cmath>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast {

TEST_CASE("order statistics: quantiles lie between neighbours in proportion") {
  CHECK(median({3}) == 3);
  CHECK(median({9, 1, 4}) == 4);
  CHECK(median({9, 1, 4, 6}) == 5);
  CHECK(quantile({40, 10, 30, 20, 50}, 0.25) == 20);
  CHECK(quantile({40, 10, 30, 20}, 0.25) == 17.5);
  CHECK(quantile({40, 10}, 0) == 10);
  CHECK(quantile({40, 10}, 1) == 40);
}

// For two draws 1/√π, for three 1.5/√π; for more the usual table of expected normal order
// statistics.
TEST_CASE("order statistics: the expected largest of normal draws") {
  const double root_pi = std::sqrt(3.14159265358979);
  CHECK(std::abs(expected_largest_normal(1)) < 1e-9);
  CHECK(expected_largest_normal(2) == near(1 / root_pi).epsilon(1e-6));
  CHECK(expected_largest_normal(3) == near(1.5 / root_pi).epsilon(1e-6));
  CHECK(expected_largest_normal(8) == near(1.42360).epsilon(1e-5));
  CHECK(expected_largest_normal(100) == near(2.50759).epsilon(1e-5));
}

}  // namespace kvcast
