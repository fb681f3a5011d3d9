#include "model/base/pareto_front.h"

#include <array>
#include <cmath>

#include <doctest/doctest.h>

namespace kvcast {
namespace {

using By = std::vector<std::optional<std::size_t>>;

TEST_CASE("pareto front: a choice is beaten by one that is nowhere worse and somewhere better") {
  CHECK(beats(std::array{1.0, 2.0}, std::array{1.0, 3.0}));
  CHECK_FALSE(beats(std::array{1.0, 3.0}, std::array{1.0, 2.0}));
  CHECK_FALSE(beats(std::array{1.0, 2.0}, std::array{1.0, 2.0}));
  CHECK_FALSE(beats(std::array{0.0, 3.0}, std::array{1.0, 2.0}));
  CHECK_FALSE(beats(std::array{0.0, std::nan("")}, std::array{1.0, 2.0}));
  CHECK_FALSE(beats(std::array{0.0, 1.0}, std::array{1.0, std::nan("")}));
}

TEST_CASE("pareto front: each choice off it names one on it") {
  CHECK(beaten_by({}).empty());
  CHECK(beaten_by({{3, 1}, {1, 3}, {2, 2}}) == By{{}, {}, {}});
  // 2 beats 1, which beats 0: both name 2.
  CHECK(beaten_by({{3, 3}, {2, 2}, {1, 1}}) == By{2, 2, {}});
  // Equal choices are on the front together.
  CHECK(beaten_by({{1, 1}, {1, 1}, {1, 2}}).at(2).has_value());
  CHECK(beaten_by({{1, 1}, {1, 1}}) == By{{}, {}});
  CHECK(beaten_by({{1, 5, 0}, {1, 4, 0}, {1, 4, -1}}) == By{2, 2, {}});
}

}  // namespace
}  // namespace kvcast
