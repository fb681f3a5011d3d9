/// Least squares with a penalty on the weights, in closed form, over more rows than memory holds.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "model/convert/slim_weights.h"

namespace kvcast {

/// y = weight·x + bias
struct AffineMap {
  DenseMatrix weight;  ///< [outputs, inputs]
  std::vector<double> bias;
};

/// Several targets of the same inputs: sums of X^T·X and X^T·Y in float64, moved by the first rows'
/// mean so that large means cost no digits.
class RidgeRegression {
 public:
  RidgeRegression(std::size_t inputs, std::vector<std::size_t> outputs);
  ~RidgeRegression();
  RidgeRegression(RidgeRegression&&) noexcept;
  RidgeRegression& operator=(RidgeRegression&&) noexcept;

  /// x [rows, inputs]; targets[i] [rows, outputs[i]].
  void add(std::span<const float> x, const std::vector<std::span<const float>>& targets);
  std::size_t rows() const { return rows_; }
  /// Minimises |y - W·x - b|² + λ·|W|², λ = `ridge` · (sum of the inputs' squared distances from
  /// their mean) / inputs; the bias costs nothing. One map for each target. Throws Error when the
  /// inputs leave the weights undetermined, or nearly so, and there is no penalty.
  std::vector<AffineMap> solve(double ridge) const;

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
  std::size_t rows_ = 0;
};

}  // namespace kvcast
