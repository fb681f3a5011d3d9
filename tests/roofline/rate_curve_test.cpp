#include "roofline/rate_curve.h"

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::roofline {

TEST_CASE("rate_curve: linear between lengths, constant beyond, over the rate without one") {
  const RateCurve curve({{100, 0.2}, {200, 0.6}, {400, 0.5}}, 0.4);
  CHECK_FALSE(curve.is_flat());
  CHECK(curve.at(1) == near(0.2 / 0.4));
  CHECK(curve.at(100) == near(0.2 / 0.4));
  CHECK(curve.at(150) == near(0.4 / 0.4));
  CHECK(curve.at(175) == near(0.5 / 0.4));
  CHECK(curve.at(200) == near(0.6 / 0.4));
  CHECK(curve.at(300) == near(0.55 / 0.4));
  CHECK(curve.at(400) == near(0.5 / 0.4));
  CHECK(curve.at(1e6) == near(0.5 / 0.4));
}

TEST_CASE("rate_curve: without lengths the rate is the same at all") {
  CHECK(RateCurve().is_flat());
  CHECK(RateCurve().at(7) == 1);
  CHECK(RateCurve({}, 0.3).is_flat());
  CHECK(RateCurve({}, 0.3).at(7) == 1);
}

}  // namespace kvcast::roofline
