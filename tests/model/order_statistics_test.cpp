#include "model/base/order_statistics.h"

#include <doctest/doctest.h>

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

}  // namespace kvcast
