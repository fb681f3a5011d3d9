/// Ridge regression in closed form, over more rows than fit in memory.
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

/// Regresses several targets on the same inputs. Sums X^T·X and X^T·Y in float64, after subtracting
/// the mean of the first rows: large means would cost digits.
class RidgeRegression {
 public:
  RidgeRegression(std::size_t inputs, const std::vector<std::size_t>& outputs);

  /// x [rows, inputs]; targets[i] [rows, outputs[i]].
  void add(const ActivationRows& x, const std::vector<ActivationRows>& targets);
  std::size_t rows() const { return rows_; }
  /// One map for each target. Minimises |y - W·x - b|² + λ·|W|² with λ = `ridge` · (sum of the
  /// inputs' squared distances from their mean) / inputs; the bias has no penalty. Throws Error if
  /// `ridge` is 0 and the inputs do not determine the weights, or hardly.
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
