/// What a kernel gets: the numbers behind a node's inputs and output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/base/error.h"
#include "model/graph/graph.h"

namespace kvcast::execute {

class Matrix;
class Messenger;
class RowTable;

/// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr std::size_t max_rank = 4;
  Shape() = default;
  void push_back(std::size_t dim) {
    KVCAST_ASSERT(rank_ < max_rank);
    dims_[rank_++] = dim;
  }
  std::size_t rank() const { return rank_; }
  std::size_t operator[](std::size_t i) const { return dims_[i]; }
  std::size_t back() const { return dims_[rank_ - 1]; }
  std::size_t elements() const {
    std::size_t product = 1;
    for (std::size_t i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::size_t, max_rank> dims_{};
  std::size_t rank_ = 0;
};

/// A tensor of fp32 numbers (fp64 in sessions of that dtype), row-major. The first dimension's
/// entries lie `batch_stride` elements apart: in a cache tensor [batch, rows, features] each
/// sequence has room to grow, a message is rows of it where they lie, other tensors are contiguous.
/// Weights may have a form of their own instead of numbers in rows: a packed matrix, or a table
/// whose rows are read from the file.
struct Operand {
  const TensorInfo* info = nullptr;
  Shape shape;
  float* data = nullptr;  ///< of fp64 numbers too: see `numbers`
  std::size_t batch_stride = 0;
  const Matrix* matrix = nullptr;
  const RowTable* table = nullptr;

  /// The numbers as what they are: float, or double in an fp64 session.
  template <typename N>
  N* numbers() const {
    return reinterpret_cast<N*>(data);
  }
  /// First element of sequence b.
  template <typename N = float>
  N* sequence(std::size_t b) const {
    return numbers<N>() + b * batch_stride;
  }
  /// Elements of all dimensions but the last.
  std::size_t rows() const { return shape.elements() / (shape.back() > 0 ? shape.back() : 1); }
  bool contiguous() const { return batch_stride * shape[0] == shape.elements(); }
};

/// What data-dependent operators did not have to do of the work that the recorder counts.
struct Skipped {
  std::uint64_t pairs = 0;      ///< of a head and a key, below the threshold
  std::uint64_t all_pairs = 0;  ///< that were compared
  std::uint64_t flops = 0;
  std::uint64_t bytes = 0;
  Skipped& operator+=(const Skipped& other) {
    pairs += other.pairs;
    all_pairs += other.all_pairs;
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

/// The operands of one node and the values of the recording's symbols.
struct Call {
  const Node& node;
  std::span<const Operand> inputs;
  const Operand& output;  ///< the node's first
  std::span<const std::uint64_t> symbols;
  Skipped* skipped = nullptr;      ///< null: nobody asks
  Messenger* messenger = nullptr;  ///< null: nothing to send or to wait for
  std::span<const Operand> more_outputs = {};

  std::size_t value(const Count& count) const { return count.at(symbols); }
};

}  // namespace kvcast::execute
