/// What a kernel gets: the numbers behind a node's inputs and output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "model/base/error.h"
#include "model/execute/cache_rows.h"
#include "model/graph/graph.h"

namespace kvcast {
class WeightReader;
}

namespace kvcast::execute {

class Matrix;
class Messenger;
struct StepRows;

/// Up to four dimensions, outermost first.
class Shape {
 public:
  static constexpr std::size_t max_rank = 4;
  Shape() = default;
  Shape(std::initializer_list<std::size_t> dims) {
    for (const std::size_t dim : dims) push_back(dim);
  }
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
  /// Of one entry of the first dimension.
  std::size_t sequence_elements() const {
    std::size_t product = 1;
    for (std::size_t i = 1; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::size_t, max_rank> dims_{};
  std::size_t rank_ = 0;
};

/// A tensor of fp32 numbers (fp64 in sessions of that dtype), row-major. Entries of the first
/// dimension lie `batch_stride` elements apart. In a cache tensor [batch, rows, features] this
/// leaves each sequence room to grow, and a paged one lies in `places`; a message lies in the rows
/// of a cache; other tensors are contiguous. A weight may be a packed matrix instead, or a table
/// whose rows are read from the file.
struct Operand {
  const TensorInfo* info = nullptr;
  Shape shape;
  float* data = nullptr;  ///< also for fp64: see `numbers`
  std::size_t batch_stride = 0;
  /// Of a paged cache [1, rows, features]: each row's place behind `data`, counted in rows.
  const std::uint32_t* places = nullptr;
  /// Of a cache in a narrow type, whose rows lie behind `data` one after another; else null.
  const CacheForm* form = nullptr;
  const Matrix* matrix = nullptr;
  const WeightReader* table = nullptr;

  /// The numbers in their type: float, or double in an fp64 session.
  template <typename N>
  N* numbers() const {
    return reinterpret_cast<N*>(data);
  }
  /// First element of sequence b.
  template <typename N = float>
  N* sequence(std::size_t b) const {
    return numbers<N>() + b * batch_stride;
  }
  /// Element i of sequence b, wherever its row lies; what follows in this row lies behind it.
  template <typename N = float>
  N* element(std::size_t b, std::size_t i) const {
    if (places == nullptr) return sequence<N>(b) + i;
    return numbers<N>() + places[i / shape.back()] * shape.back() + i % shape.back();
  }
  /// Row i of sequence b of a cache in a narrow type.
  std::byte* narrow_row(std::size_t b, std::size_t i) const {
    const std::size_t row = places != nullptr ? places[i] : b * (batch_stride / shape.back()) + i;
    return numbers<std::byte>() + row * form->row_bytes();
  }
  /// Elements of all dimensions but the last.
  std::size_t rows() const { return shape.elements() / (shape.back() > 0 ? shape.back() : 1); }
  bool contiguous() const {
    return places == nullptr && batch_stride * shape[0] == shape.elements();
  }
};

/// Recorded work that data-dependent operators did not have to do.
struct Skipped {
  std::uint64_t pairs = 0;      ///< pairs of a head and a key below the threshold
  std::uint64_t all_pairs = 0;  ///< all pairs compared
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

/// What a node has sent to other ranks and received from them.
struct Exchanged {
  std::uint64_t messages = 0;  ///< sent
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

/// Which tokens a DispatchTokens moves; the ReturnTokens after it moves their sums back.
struct MovedTokens {
  /// By member of the group: the tokens here that choose experts there, ascending.
  std::vector<std::vector<std::size_t>> sent;
  /// By member: its tokens that choose experts here.
  std::vector<std::vector<std::size_t>> received;
  std::size_t pairs = 0;  ///< of a token of any member and an expert here
};

/// The operands of one node and the values of the recording's symbols.
struct Call {
  const Node& node;
  std::span<const Operand> inputs;
  const Operand& output;  ///< the node's first
  std::span<const std::uint64_t> symbols;
  Skipped* skipped = nullptr;      ///< may be null
  Messenger* messenger = nullptr;  ///< null: nothing to send or to wait for
  std::span<const Operand> more_outputs = {};
  Exchanged* exchanged = nullptr;             ///< may be null
  const MovedTokens* moved_tokens = nullptr;  ///< of DispatchTokens and ReturnTokens
  const StepRows* step = nullptr;             ///< of sequences side by side, see step_rows.h

  std::size_t value(const Count& count) const { return count.at(symbols); }
};

}  // namespace kvcast::execute
