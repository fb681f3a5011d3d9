#include "model/execute/positions.h"

#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

namespace kvcast::execute {
namespace {

using Indices = std::vector<std::size_t>;

Indices kept(const std::vector<float>& sums, std::size_t count) {
  return kept_tokens(std::span<const float>(sums), count);
}

TEST_CASE("kept tokens: the largest and the last, in order, the first among equals") {
  const std::vector<float> sums{3, 5, 1, 5, 5, 2, 0};
  CHECK(kept(sums, 1) == Indices{6});
  CHECK(kept(sums, 2) == Indices{1, 6});
  CHECK(kept(sums, 3) == Indices{1, 3, 6});
  CHECK(kept(sums, 5) == Indices{0, 1, 3, 4, 6});
  CHECK(kept(sums, 7) == Indices{0, 1, 2, 3, 4, 5, 6});
  CHECK(kept({9}, 1) == Indices{0});
  // The last one's own sum decides nothing.
  CHECK(kept({1, 2, 9}, 2) == Indices{1, 2});
}

TEST_CASE("kept tokens: sums that are no numbers are kept last, and as many as were asked for") {
  constexpr float none = std::numeric_limits<float>::quiet_NaN();
  CHECK(kept({none, 1, none, 2, 0}, 3) == Indices{1, 3, 4});
  CHECK(kept({none, 1, none, 2, 0}, 4) == Indices{0, 1, 3, 4});
  CHECK(kept(std::vector<float>(40, none), 20).size() == 20);
}

}  // namespace
}  // namespace kvcast::execute
