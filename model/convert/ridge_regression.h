/// Least squares with a penalty on the weights, in closed form, over more rows than memory holds.
#pragma once

#include <cstddef>
#include <vector>

#include "model/convert/dense_matrix.h"

namespace kvcast {

/// y = weight·x + bias
struct AffineMap {
  DenseMatrix weight;  ///< [outputs, inputs]
  Eigen::VectorXd bias;
};

/// Several targets of the same inputs: sums of X^T·X and X^T·Y in float64, moved by the first rows'
/// mean so that large means cost no digits.
class RidgeRegression {
 public:
  RidgeRegression(std::size_t inputs, const std::vector<std::size_t>& outputs);

  /// x [rows, inputs]; targets[i] [rows, outputs[i]].
  void add(const ActivationRows& x, const std::vector<ActivationRows>& targets);
  std::size_t rows() const { return rows_; }
  /// Minimises |y - W·x - b|² + λ·|W|², λ = `ridge` · (sum of the inputs' squared distances from
  /// their mean) / inputs; the bias costs nothing. One map for each target. Throws Error when the
  /// inputs leave the weights undetermined, or nearly so, and there is no penalty.
  std::vector<AffineMap> solve(double ridge) const;

 private:
  struct Target {
    Eigen::RowVectorXd origin;
    Eigen::RowVectorXd sum;
    Eigen::MatrixXd products;  ///< [inputs, outputs]
  };
  Eigen::RowVectorXd origin_;
  Eigen::RowVectorXd sum_;
  Eigen::MatrixXd squares_;  ///< [inputs, inputs], lower half
  std::vector<Target> targets_;
  std::size_t rows_ = 0;
};

}  // namespace kvcast
