#include "model/convert/ridge_regression.h"

#include <cmath>

#include <Eigen/Cholesky>
#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// A pivot of the Cholesky decomposition below this share of the largest is rounding.
constexpr double smallest_pivot = 1e-7;  // its square is 45 times float64's epsilon

}  // namespace

RidgeRegression::RidgeRegression(std::size_t inputs, const std::vector<std::size_t>& outputs) {
  sum_.setZero(index(inputs));
  squares_.setZero(index(inputs), index(inputs));
  for (const std::size_t n : outputs) {
    Target& t = targets_.emplace_back();
    t.sum.setZero(index(n));
    t.products.setZero(index(inputs), index(n));
  }
}

void RidgeRegression::add(const ActivationRows& x, const std::vector<ActivationRows>& targets) {
  KVCAST_ASSERT(targets.size() == targets_.size() && x.cols() == sum_.size());
  if (x.rows() == 0) return;
  Eigen::MatrixXd inputs = x.cast<double>();
  if (rows_ == 0) origin_ = inputs.colwise().mean();
  inputs.rowwise() -= origin_;
  sum_ += inputs.colwise().sum();
  squares_.selfadjointView<Eigen::Lower>().rankUpdate(inputs.transpose());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Target& t = targets_[i];
    KVCAST_ASSERT(targets[i].rows() == x.rows() && targets[i].cols() == t.sum.size());
    Eigen::MatrixXd outputs = targets[i].cast<double>();
    if (rows_ == 0) t.origin = outputs.colwise().mean();
    outputs.rowwise() -= t.origin;
    t.sum += outputs.colwise().sum();
    t.products.noalias() += inputs.transpose() * outputs;
  }
  rows_ += static_cast<std::size_t>(x.rows());
}

std::vector<AffineMap> RidgeRegression::solve(double ridge) const {
  KVCAST_ASSERT(rows_ > 0);
  const auto n = static_cast<double>(rows_);
  const Eigen::RowVectorXd mean = sum_ / n;
  Eigen::MatrixXd spread = squares_.selfadjointView<Eigen::Lower>();
  spread.noalias() -= n * mean.transpose() * mean;
  const double penalty = ridge * spread.trace() / static_cast<double>(spread.rows());
  if (!std::isfinite(penalty)) {
    throw Error("--ridge", fmt::format("{}, a penalty beyond all numbers", ridge),
                "a share of the inputs' spread such as 1e-4");
  }
  spread.diagonal().array() += penalty;
  const Eigen::LLT<Eigen::MatrixXd> cholesky(spread);
  const Eigen::VectorXd pivots = cholesky.matrixLLT().diagonal();
  if (cholesky.info() != Eigen::Success ||
      !(pivots.minCoeff() > smallest_pivot * pivots.maxCoeff())) {
    throw Error("regression",
                fmt::format("{} rows that leave {} weights of an output undetermined", rows_,
                            spread.rows()),
                "a longer text, or --ridge above 0");
  }
  std::vector<AffineMap> maps;
  for (const Target& t : targets_) {
    const Eigen::RowVectorXd target_mean = t.sum / n;
    const Eigen::MatrixXd weight =
        cholesky.solve(t.products - n * mean.transpose() * target_mean);  // [inputs, outputs]
    const Eigen::RowVectorXd bias = t.origin + target_mean - (origin_ + mean) * weight;
    maps.push_back({weight.transpose(), bias.transpose()});
  }
  return maps;
}

}  // namespace kvcast
