/// The weights that Slim attention computes keys and values with, and how exact they are.
///
/// Matrices are stored as PyTorch's nn.Linear stores them, [out, in]: keys are K = X·Sᵀ_K with
/// S_K [features, hidden_size].
#pragma once

#include "model/base/dtype.h"
#include "model/convert/dense_matrix.h"

namespace kvcast {

/// One projection's inverse: turns what it made back into its input, and so into what any other
/// projection of that input makes.
class ProjectionInverse {
 public:
  /// `projection` [features, hidden_size], features at least hidden_size: the inverse of a square
  /// one, the left inverse of the smallest norm else (the paper's right inverse in its row
  /// convention).
  explicit ProjectionInverse(const DenseMatrix& projection);

  /// M [other features, features] with M·projection = other, in float64 by a QR decomposition.
  /// Infinities where the projection is singular.
  DenseMatrix map_to(const DenseMatrix& other) const;
  /// The largest singular value over the smallest, by power iteration to about three digits;
  /// infinity for a singular projection.
  double condition() const { return condition_; }

 private:
  Eigen::MatrixXd q_;  ///< [features, hidden_size]
  Eigen::MatrixXd r_;  ///< [hidden_size, hidden_size], upper
  double condition_;
};

/// The relative error of M·kept: the norm of its difference from what `other` makes of the inputs
/// [rows, hidden_size], over the norm of the latter. Weights and what is kept are rounded to
/// `storage` (FP64, FP32, FP16, BF16); the products are fp32 (fp64 with FP64).
double reconstruction_error(const ActivationRows& inputs, const DenseMatrix& projection,
                            const DenseMatrix& map, const DenseMatrix& other, DType storage);

/// The same for `other` computed anew from inputs kept in `storage`.
double input_cache_error(const ActivationRows& inputs, const DenseMatrix& other, DType storage);

}  // namespace kvcast
