#include "model/convert/dense_matrix.h"

#include <vector>

namespace kvcast {
namespace {

std::size_t row_size(const WeightReader& reader) {
  std::size_t row = 1;
  const std::vector<std::uint64_t> shape = reader.shape();
  for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  return row;
}

}  // namespace

DenseMatrix read_rows(const WeightReader& reader, std::size_t first, std::size_t count) {
  DenseMatrix rows(index(count), index(row_size(reader)));
  reader.read_rows(first, std::span(rows.data(), static_cast<std::size_t>(rows.size())));
  return rows;
}

DenseMatrix read_weight(const WeightReader& reader) {
  DenseMatrix weight = read_rows(reader, 0, reader.shape().front());
  reader.forget();
  return weight;
}

}  // namespace kvcast
