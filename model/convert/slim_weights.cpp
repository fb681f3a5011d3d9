#include "model/convert/slim_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/QR>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// The largest singular value of x -> apply(x), `transposed` being its transpose.
template <typename Apply, typename Transposed>
double largest_singular_value(Eigen::Index size, Apply apply, Transposed transposed) {
  // A start with some of every direction; any other would do, this one repeats.
  Eigen::VectorXd x(size);
  for (Eigen::Index i = 0; i < size; ++i) x[i] = 1 + 0.5 * std::sin(static_cast<double>(i + 1));
  x.normalize();
  double value = 0;
  constexpr int most_steps = 300;
  for (int step = 0; step < most_steps; ++step) {
    const Eigen::VectorXd y = transposed(apply(x));
    const double square = y.norm();
    if (!std::isfinite(square)) return std::numeric_limits<double>::infinity();
    if (square == 0) return 0;
    const double next = std::sqrt(square);
    x = y / square;
    const bool settled = std::abs(next - value) < 1e-5 * next;
    value = next;
    if (settled) break;
  }
  return value;
}

float rounded(double x, DType storage) {
  switch (storage) {
    case DType::FP16: return static_cast<float>(Eigen::half(static_cast<float>(x)));
    case DType::BF16: return static_cast<float>(Eigen::bfloat16(static_cast<float>(x)));
    default: return static_cast<float>(x);
  }
}

ActivationRows rounded(const DenseMatrix& m, DType storage) {
  return m.unaryExpr([&](double x) { return rounded(x, storage); }).cast<float>();
}

double relative_error(const DenseMatrix& ours, const DenseMatrix& exact) {
  const double error = (ours - exact).norm() / exact.norm();
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace

ProjectionInverse::ProjectionInverse(const DenseMatrix& projection) {
  const Eigen::Index features = projection.rows();
  const Eigen::Index hidden = projection.cols();
  KVCAST_ASSERT(features >= hidden);
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(projection);
  r_ = qr.matrixQR().topRows(hidden).triangularView<Eigen::Upper>();
  q_ = qr.householderQ() * Eigen::MatrixXd::Identity(features, hidden);

  const auto upper = r_.triangularView<Eigen::Upper>();
  const auto lower = r_.transpose().triangularView<Eigen::Lower>();
  const double largest = largest_singular_value(
      hidden, [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(upper * x); },
      [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(lower * x); });
  const double of_inverse = largest_singular_value(
      hidden, [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(lower.solve(x)); },
      [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(upper.solve(x)); });
  condition_ = largest * of_inverse;
  // Beyond this no digit of a float64 solution is right.
  constexpr double singular = 1 / std::numeric_limits<double>::epsilon();
  if (!(condition_ < singular)) condition_ = std::numeric_limits<double>::infinity();
}

DenseMatrix ProjectionInverse::map_to(const DenseMatrix& other) const {
  KVCAST_ASSERT(other.cols() == r_.cols());
  if (std::isinf(condition_)) {
    return DenseMatrix::Constant(other.rows(), q_.rows(), std::numeric_limits<double>::infinity());
  }
  // M·Q·R = other, so (M·Q)ᵀ = R⁻ᵀ·otherᵀ.
  const Eigen::MatrixXd part =
      r_.transpose().triangularView<Eigen::Lower>().solve(Eigen::MatrixXd(other.transpose()));
  return part.transpose() * q_.transpose();
}

double reconstruction_error(const ActivationRows& inputs, const DenseMatrix& projection,
                            const DenseMatrix& map, const DenseMatrix& other, DType storage) {
  const DenseMatrix x = inputs.cast<double>();
  const DenseMatrix exact = x * other.transpose();
  if (storage == DType::FP64) {
    return relative_error(x * projection.transpose() * map.transpose(), exact);
  }
  const ActivationRows product = inputs * rounded(projection, storage).transpose();
  const ActivationRows kept = rounded(product.cast<double>(), storage);
  const ActivationRows ours = kept * rounded(map, storage).transpose();
  return relative_error(ours.cast<double>(), exact);
}

double input_cache_error(const ActivationRows& inputs, const DenseMatrix& other, DType storage) {
  if (storage == DType::FP64) return 0;
  const DenseMatrix x = inputs.cast<double>();
  const DenseMatrix exact = x * other.transpose();
  const ActivationRows ours = rounded(x, storage) * rounded(other, storage).transpose();
  return relative_error(ours.cast<double>(), exact);
}

}  // namespace kvcast
