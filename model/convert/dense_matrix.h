/// Row-major matrices, as in weight files: weights [out, in].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <Eigen/Core>

#include "model/io/weights/checkpoint.h"

namespace kvcast {

using DenseMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// An operator's input or output in a run: [tokens, features].
using ActivationRows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }

inline std::span<const double> numbers_of(const DenseMatrix& m) {
  return {m.data(), static_cast<std::size_t>(m.size())};
}

/// Rows [first, first + count) of a weight. A row holds all dimensions after the first.
DenseMatrix read_rows(const WeightReader& reader, std::size_t first, std::size_t count);
/// All of a weight. Releases the pages of the file.
DenseMatrix read_weight(const WeightReader& reader);
}  // namespace kvcast
