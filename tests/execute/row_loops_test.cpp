#include "model/execute/row_loops.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "tests/execute/whole_numbers.h"

namespace kvcast::execute {
namespace {

TEST_CASE("row loops: the largest number is the first of equals, wherever it is") {
  // From -7 to 8: the largest number of a long row is there several times.
  for (const std::size_t n : {1u, 2u, 15u, 17u, 255u, 256u, 257u, 700u}) {
    const std::vector<float> row = whole_numbers(n, static_cast<std::uint32_t>(n));
    const auto largest = std::max_element(row.begin(), row.end());
    CHECK(largest_index(row.data(), n) == static_cast<std::size_t>(largest - row.begin()));
  }
  for (const std::size_t place : {0u, 1u, 255u, 256u, 511u, 512u, 599u}) {
    std::vector<float> row(600, -3.0F);
    row[place] = -2.5F;
    CHECK(largest_index(row.data(), row.size()) == place);
    row[599] = -2.5F;
    CHECK(largest_index(row.data(), row.size()) == place);
  }
  const std::vector<float> all_lowest(300, std::numeric_limits<float>::lowest());
  CHECK(largest_index(all_lowest.data(), 300) == 0);
}

TEST_CASE("row loops: one number that is none is found, and the largest finite ones are finite") {
  constexpr float top = std::numeric_limits<float>::max();
  std::vector<float> row(100, top);
  row[3] = -top;
  row[5] = std::numeric_limits<float>::denorm_min();
  CHECK(is_finite_row(row.data(), row.size()));
  for (const float odd :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t place : {0u, 50u, 98u, 99u}) {
      std::vector<float> broken = row;
      broken[place] = odd;
      CHECK_FALSE(is_finite_row(broken.data(), broken.size()));
      CHECK(is_finite_row(broken.data(), place));
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
