/// The weights with which Slim attention recomputes keys and values, and their errors.
///
/// Matrices are stored [out, in], as in PyTorch's nn.Linear: keys are K = X·Sᵀ_K with
/// S_K [features, hidden_size].
#pragma once

#include "model/base/dtype.h"
#include "model/convert/dense_matrix.h"

namespace kvcast {

/// The inverse of a projection: maps its output back to its input, and so to the output of any
/// other projection of that input.
class ProjectionInverse {
 public:
  /// `projection` [features, hidden_size] with features at least hidden_size. A square one gets its
  /// inverse, others the left inverse of the smallest norm (the right inverse in the paper's row
  /// convention).
  explicit ProjectionInverse(const DenseMatrix& projection);

  /// M [other features, features] with M·projection = other, in float64 by a QR decomposition.
  /// Infinite if the projection is singular.
  DenseMatrix map_to(const DenseMatrix& other) const;
  /// The condition number (largest / smallest singular value), by power iteration to about three
  /// digits; infinity for a singular projection.
  double condition() const { return condition_; }

 private:
  Eigen::MatrixXd q_;  ///< [features, hidden_size]
  Eigen::MatrixXd r_;  ///< [hidden_size, hidden_size], upper
  double condition_;
};

/// The relative error of `map` applied to the outputs of `projection`: the norm of the difference
/// from the outputs of `other`, over the norm of the latter. Both projections read `inputs` [rows,
/// hidden_size]. Weights and cached outputs are rounded to `storage` (FP64, FP32, FP16, BF16);
/// products are fp32 (fp64 with FP64).
double reconstruction_error(const ActivationRows& inputs, const DenseMatrix& projection,
                            const DenseMatrix& map, const DenseMatrix& other, DType storage);

/// The same error for `other` recomputed from inputs cached in `storage`.
double input_cache_error(const ActivationRows& inputs, const DenseMatrix& other, DType storage);

}  // namespace kvcast
