#include "model/convert/ridge_regression.h"

#include <cmath>

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajorFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }

Matrix view(std::span<const float> numbers, std::size_t rows, std::size_t columns) {
  KVCAST_ASSERT(numbers.size() == rows * columns);
  return Eigen::Map<const RowMajorFloats>(numbers.data(), index(rows), index(columns))
      .cast<double>();
}

/// A pivot of the Cholesky decomposition below this share of the largest is rounding.
constexpr double smallest_pivot = 1e-7;  // its square is 45 times float64's epsilon

}  // namespace

struct RidgeRegression::Sums {
  struct Target {
    Eigen::RowVectorXd origin;
    Eigen::RowVectorXd sum;
    Matrix products;  ///< [inputs, outputs]
  };
  Eigen::RowVectorXd origin;
  Eigen::RowVectorXd sum;
  Matrix squares;  ///< [inputs, inputs], lower half
  std::vector<Target> targets;
};

RidgeRegression::RidgeRegression(std::size_t inputs, std::vector<std::size_t> outputs)
    : sums_(std::make_unique<Sums>()) {
  sums_->sum.setZero(index(inputs));
  sums_->squares.setZero(index(inputs), index(inputs));
  for (const std::size_t n : outputs) {
    Sums::Target& t = sums_->targets.emplace_back();
    t.sum.setZero(index(n));
    t.products.setZero(index(inputs), index(n));
  }
}

RidgeRegression::~RidgeRegression() = default;
RidgeRegression::RidgeRegression(RidgeRegression&&) noexcept = default;
RidgeRegression& RidgeRegression::operator=(RidgeRegression&&) noexcept = default;

void RidgeRegression::add(std::span<const float> x,
                          const std::vector<std::span<const float>>& targets) {
  Sums& s = *sums_;
  KVCAST_ASSERT(targets.size() == s.targets.size());
  const auto inputs = static_cast<std::size_t>(s.sum.size());
  const std::size_t rows = x.size() / inputs;
  if (rows == 0) return;
  Matrix inputs_of = view(x, rows, inputs);
  if (rows_ == 0) s.origin = inputs_of.colwise().mean();
  inputs_of.rowwise() -= s.origin;
  s.sum += inputs_of.colwise().sum();
  s.squares.selfadjointView<Eigen::Lower>().rankUpdate(inputs_of.transpose());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Sums::Target& t = s.targets[i];
    Matrix outputs_of = view(targets[i], rows, static_cast<std::size_t>(t.sum.size()));
    if (rows_ == 0) t.origin = outputs_of.colwise().mean();
    outputs_of.rowwise() -= t.origin;
    t.sum += outputs_of.colwise().sum();
    t.products.noalias() += inputs_of.transpose() * outputs_of;
  }
  rows_ += rows;
}

std::vector<AffineMap> RidgeRegression::solve(double ridge) const {
  KVCAST_ASSERT(rows_ > 0);
  const Sums& s = *sums_;
  const auto n = static_cast<double>(rows_);
  const Eigen::RowVectorXd mean = s.sum / n;
  Matrix spread = s.squares.selfadjointView<Eigen::Lower>();
  spread.noalias() -= n * mean.transpose() * mean;
  const double penalty = ridge * spread.trace() / static_cast<double>(spread.rows());
  if (!std::isfinite(penalty)) {
    throw Error("--ridge", fmt::format("{}, a penalty beyond all numbers", ridge),
                "a share of the inputs' spread such as 1e-4");
  }
  spread.diagonal().array() += penalty;
  const Eigen::LLT<Matrix> cholesky(spread);
  const Eigen::VectorXd pivots = cholesky.matrixLLT().diagonal();
  if (cholesky.info() != Eigen::Success ||
      !(pivots.minCoeff() > smallest_pivot * pivots.maxCoeff())) {
    throw Error("regression",
                fmt::format("{} rows that leave {} weights of an output undetermined", rows_,
                            spread.rows()),
                "a longer text, or --ridge above 0");
  }
  std::vector<AffineMap> maps;
  for (const Sums::Target& t : s.targets) {
    const Eigen::RowVectorXd target_mean = t.sum / n;
    const Matrix weight =
        cholesky.solve(t.products - n * mean.transpose() * target_mean);  // [inputs, outputs]
    const Eigen::RowVectorXd bias = t.origin + target_mean - (s.origin + mean) * weight;
    AffineMap& map = maps.emplace_back();
    map.weight.rows = static_cast<std::size_t>(weight.cols());
    map.weight.columns = static_cast<std::size_t>(weight.rows());
    // Column-major [inputs, outputs] is row-major [outputs, inputs].
    map.weight.numbers.assign(weight.data(), weight.data() + weight.size());
    map.bias.assign(bias.data(), bias.data() + bias.size());
  }
  return maps;
}

}  // namespace kvcast
