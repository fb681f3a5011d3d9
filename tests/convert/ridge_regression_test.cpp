#include "model/convert/ridge_regression.h"

#include <random>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast {
namespace {

using Rows = ActivationRows;

TEST_CASE("ridge regression: three points and a line, by hand") {
  // x = 0, 1, 2 and y = 1, 2, 6, means 1 and 3: Σ(x-1)(y-3) = 2 + 0 + 3, Σ(x-1)² = 2.
  RidgeRegression r(1, {1});
  r.add(Rows{{0}, {1}, {2}}, {Rows{{1}, {2}, {6}}});
  const AffineMap free = r.solve(0).front();
  CHECK(free.weight(0, 0) == near(5.0 / 2));
  CHECK(free.bias[0] == near(3 - 5.0 / 2));
  // λ = 1 · 2 / 1 = 2 beside Σ(x-1)²; the bias is not drawn to zero.
  const AffineMap drawn = r.solve(1).front();
  CHECK(drawn.weight(0, 0) == near(5.0 / 4));
  CHECK(drawn.bias[0] == near(3 - 5.0 / 4));
}

TEST_CASE("ridge regression: two inputs and two targets, by hand") {
  // Rows (1,0), (0,1), (-1,0), (0,-1): the inputs are centred, X^T·X = 2·I, λ = ridge · 4 / 2.
  RidgeRegression r(2, {2, 1});
  const Rows x{{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  r.add(x, {Rows{{3, 5}, {1, 5}, {1, 1}, {1, 1}}, Rows{{4}, {3}, {4}, {3}}});
  // First target: means (1.5, 3); Σ x0·y = (3-1, 5-1) = (2, 4), Σ x1·y = (1-1, 5-1) = (0, 4).
  for (const double ridge : {0.0, 0.5}) {
    const auto maps = r.solve(ridge);
    const double scale = 1 / (2 + 2 * ridge);
    REQUIRE(maps.size() == 2);
    CHECK(maps[0].weight.isApprox(scale * DenseMatrix{{2, 0}, {4, 4}}));
    CHECK(maps[0].bias == Eigen::Vector2d(1.5, 3));
    // Second: x0 and x1 cancel: 4 - 4 and 3 - 3.
    CHECK(maps[1].weight == DenseMatrix{{0, 0}});
    CHECK(maps[1].bias[0] == 3.5);
  }
}

TEST_CASE("ridge regression: a known map is found again from pieces far from the origin") {
  constexpr std::size_t inputs = 5, outputs = 3, rows = 40;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto draw = [&] { return normal(random); };
  const DenseMatrix weight = Rows::NullaryExpr(outputs, inputs, draw).cast<double>();
  const Eigen::RowVectorXd bias =
      100 * Eigen::RowVectorXf::NullaryExpr(outputs, draw).cast<double>();
  RidgeRegression r(inputs, {outputs});
  for (int piece = 0; piece < 4; ++piece) {
    const Rows x = Rows::NullaryExpr(rows, inputs, draw).array() + 1000;
    const DenseMatrix y = (x.cast<double>() * weight.transpose()).rowwise() + bias;
    r.add(x, {y.cast<float>()});
  }
  CHECK(r.rows() == 4 * rows);
  const AffineMap map = r.solve(0).front();
  // Targets near 1000 in fp32 are off by 3e-5 each.
  CHECK((map.weight - weight).cwiseAbs().maxCoeff() < 2e-4);
}

TEST_CASE("ridge regression: rows that leave weights open need a penalty") {
  RidgeRegression few(3, {1});
  few.add(Rows{{1, 2, 3}, {4, 5, 7}}, {Rows{{1}, {2}}});
  CHECK(message_of([&] { few.solve(0); }).find("expected a longer text, or --ridge above 0") !=
        std::string::npos);
  CHECK(few.solve(0.01).front().weight.size() == 3);
  RidgeRegression constant(1, {1});
  constant.add(Rows{{2}, {2}, {2}}, {Rows{{1}, {2}, {3}}});
  CHECK(message_of([&] { constant.solve(1); }).find("3 rows that leave 1 weights") !=
        std::string::npos);
}

}  // namespace
}  // namespace kvcast
