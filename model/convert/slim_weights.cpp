#include "model/convert/slim_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Core>
#include <Eigen/QR>

#include "model/base/error.h"

namespace kvcast {
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }

Eigen::Map<const RowMajor> view(const DenseMatrix& m) {
  return {m.numbers.data(), index(m.rows), index(m.columns)};
}

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

Floats rounded(const Eigen::Ref<const RowMajor>& m, DType storage) {
  return m.unaryExpr([&](double x) { return rounded(x, storage); }).cast<float>();
}

Eigen::Map<const Floats> view(const InputRows& x) {
  return {x.numbers.data(), index(x.rows()), index(x.hidden_size)};
}

double relative_error(const RowMajor& ours, const RowMajor& exact) {
  const double error = (ours - exact).norm() / exact.norm();
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace

DenseMatrix stacked(const DenseMatrix& a, const DenseMatrix& b) {
  KVCAST_ASSERT(a.columns == b.columns);
  DenseMatrix both = a;
  both.rows += b.rows;
  both.numbers.insert(both.numbers.end(), b.numbers.begin(), b.numbers.end());
  return both;
}

ProjectionInverse::ProjectionInverse(const DenseMatrix& projection)
    : features_(projection.rows), hidden_(projection.columns) {
  KVCAST_ASSERT(features_ >= hidden_);
  const Matrix s = view(projection);
  const Eigen::HouseholderQR<Matrix> qr(s);
  const Matrix r = qr.matrixQR().topRows(index(hidden_)).triangularView<Eigen::Upper>();
  const Matrix q = qr.householderQ() * Matrix::Identity(index(features_), index(hidden_));
  q_.assign(q.data(), q.data() + q.size());
  r_.assign(r.data(), r.data() + r.size());

  const auto upper = r.triangularView<Eigen::Upper>();
  const auto lower = r.transpose().triangularView<Eigen::Lower>();
  const double largest = largest_singular_value(
      index(hidden_), [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(upper * x); },
      [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(lower * x); });
  const double of_inverse = largest_singular_value(
      index(hidden_), [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(lower.solve(x)); },
      [&](const Eigen::VectorXd& x) { return Eigen::VectorXd(upper.solve(x)); });
  condition_ = largest * of_inverse;
  // Beyond this no digit of a float64 solution is right.
  constexpr double singular = 1 / std::numeric_limits<double>::epsilon();
  if (!(condition_ < singular)) condition_ = std::numeric_limits<double>::infinity();
}

DenseMatrix ProjectionInverse::map_to(const DenseMatrix& other) const {
  KVCAST_ASSERT(other.columns == hidden_);
  DenseMatrix map{other.rows, features_, std::vector<double>(other.rows * features_)};
  if (std::isinf(condition_)) {
    std::fill(map.numbers.begin(), map.numbers.end(), std::numeric_limits<double>::infinity());
    return map;
  }
  const Eigen::Map<const Matrix> q(q_.data(), index(features_), index(hidden_));
  const Eigen::Map<const Matrix> r(r_.data(), index(hidden_), index(hidden_));
  // M·Q·R = other, so (M·Q)ᵀ = R⁻ᵀ·otherᵀ.
  const Matrix part =
      r.transpose().triangularView<Eigen::Lower>().solve(Matrix(view(other).transpose()));
  Eigen::Map<RowMajor>(map.numbers.data(), index(map.rows), index(map.columns)) =
      part.transpose() * q.transpose();
  return map;
}

double reconstruction_error(const InputRows& inputs, const DenseMatrix& projection,
                            const DenseMatrix& map, const DenseMatrix& other, DType storage) {
  const RowMajor x = view(inputs).cast<double>();
  const RowMajor exact = x * view(other).transpose();
  if (storage == DType::FP64) {
    return relative_error(x * view(projection).transpose() * view(map).transpose(), exact);
  }
  const Floats product = view(inputs) * rounded(view(projection), storage).transpose();
  const Floats kept = rounded(product.cast<double>(), storage);
  const Floats ours = kept * rounded(view(map), storage).transpose();
  return relative_error(ours.cast<double>(), exact);
}

double input_cache_error(const InputRows& inputs, const DenseMatrix& other, DType storage) {
  const RowMajor x = view(inputs).cast<double>();
  const RowMajor exact = x * view(other).transpose();
  if (storage == DType::FP64) return 0;
  const Floats ours = rounded(x, storage) * rounded(view(other), storage).transpose();
  return relative_error(ours.cast<double>(), exact);
}

}  // namespace kvcast
