#include "model/convert/slim_weights.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast {
namespace {

/// cos and sin of an angle as a 2 x 2 rotation, scaled by s and t: singular values s and t.
DenseMatrix scaled_rotation(double angle, double s, double t) {
  const double c = std::cos(angle);
  const double d = std::sin(angle);
  return DenseMatrix{{s * c, -t * d}, {s * d, t * c}};
}

TEST_CASE("slim weights: the map turns keys into values, of square and of tall projections") {
  const DenseMatrix values{{1, 2}, {3, 5}};
  const DenseMatrix square = scaled_rotation(0.7, 3, 0.5);
  CHECK((ProjectionInverse(square).map_to(values) * square).isApprox(values, 1e-14));
  // Three features of two: the left inverse of the smallest norm vanishes on what no input makes,
  // (1, 1, -1).
  const DenseMatrix tall{{1, 0}, {0, 1}, {1, 1}};
  const DenseMatrix map = ProjectionInverse(tall).map_to(values);
  CHECK(map.rows() == 2);
  CHECK(map.cols() == 3);
  CHECK((map * tall).isApprox(values, 1e-14));
  CHECK((map * Eigen::Vector3d(1, 1, -1)).norm() < 1e-14);
}

TEST_CASE("slim weights: the condition number is that of the singular values") {
  CHECK(ProjectionInverse(scaled_rotation(0.3, 2, 2)).condition() == near(1));
  CHECK(ProjectionInverse(scaled_rotation(0.3, 5e6, 0.5)).condition() == near(1e7).epsilon(1e-3));
  // Singular values of (1, 0; 0, 1; 1, 1): sqrt(3) and 1.
  CHECK(ProjectionInverse(DenseMatrix{{1, 0}, {0, 1}, {1, 1}}).condition() ==
        near(std::sqrt(3)).epsilon(1e-3));
  const ProjectionInverse singular(DenseMatrix{{1, 2}, {2, 4}});
  CHECK(std::isinf(singular.condition()));
  CHECK(std::isinf(singular.map_to(DenseMatrix{{1, 1}})(0, 0)));
}

TEST_CASE("slim weights: errors grow with the condition and with coarser storage") {
  ActivationRows inputs(20, 2);
  for (int i = 0; i < 40; ++i) inputs(i / 2, i % 2) = static_cast<float>(std::sin(1.3 * i));
  const DenseMatrix values{{1, 2}, {3, 5}};
  const auto error = [&](double small, DType storage) {
    const DenseMatrix keys = scaled_rotation(0.7, 1, small);
    return reconstruction_error(inputs, keys, ProjectionInverse(keys).map_to(values), values,
                                storage);
  };
  CHECK(error(1, DType::FP64) < 1e-15);
  CHECK(error(1e-6, DType::FP64) < 1e-9);
  CHECK(error(1, DType::FP32) < 1e-6);
  // An error of half a unit in the last of 11 bits, times the condition.
  CHECK(error(1, DType::FP16) < std::ldexp(4, -11));
  CHECK(error(1, DType::FP16) > error(1, DType::FP32) * 100);
  CHECK(error(1, DType::BF16) > error(1, DType::FP16) * 4);
  CHECK(error(1e-3, DType::FP16) > 20 * error(1, DType::FP16));
  const DenseMatrix singular{{1, 2}, {2, 4}};
  CHECK(std::isinf(reconstruction_error(
      inputs, singular, ProjectionInverse(singular).map_to(values), values, DType::FP32)));
  CHECK(input_cache_error(inputs, values, DType::FP64) == 0);
  CHECK(input_cache_error(inputs, values, DType::BF16) < std::ldexp(4, -8));
}

}  // namespace
}  // namespace kvcast
