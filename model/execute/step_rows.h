/// Where the rows of a pass's sequences lie: in a batch of sequences of one length, or side by side
/// in one row of unequal ones (the pass "step", model/record/step_recording.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// A sequence's part in a step.
struct SequenceRows {
  std::size_t tokens = 1;        ///< that the step computes
  std::size_t cached = 0;        ///< rows in the cache before it
  std::size_t first_token = 0;   ///< its first row in a tensor of all tokens
  std::size_t first_cached = 0;  ///< its first row in a tensor of all cached rows
  std::size_t dropped = 0;       ///< rows that its cache lets go of after the step
  std::size_t first_kept = 0;    ///< its first row in a tensor of the rows left then
  /// Its first row in a tensor of cached and new rows, which has those of each sequence together.
  std::size_t first_row() const { return first_token + first_cached; }
  std::size_t rows() const { return cached + tokens; }
};

struct StepRows {
  std::size_t block_size = 1;  ///< as many rows of a sequence lie side by side in the cache
  std::vector<SequenceRows> sequences;
  std::size_t tokens = 0;  ///< of all sequences
  std::size_t cached = 0;
  /// The places in the cache's pool of cached rows, of cached and new ones, and of those left.
  /// Sequences may share rows.
  std::vector<std::uint32_t> cached_places;
  std::vector<std::uint32_t> all_places;
  std::vector<std::uint32_t> kept_places;

  /// The place in its sequence of each row of a tensor that has a row for each new token, or for
  /// each cached and new one.
  std::vector<std::size_t> positions(std::size_t rows) const;
};

/// A sequence's rows among all queries and all keys of an attention.
struct SequencePart {
  std::size_t index = 0;  ///< of the sequence
  std::size_t first_query = 0;
  std::size_t queries = 0;
  std::size_t first_key = 0;
  std::size_t keys = 0;
  std::size_t past = 0;        ///< the place of query 0 among the keys
  std::size_t first_read = 0;  ///< keys before it are not read
};

/// Those of all sequences of a call whose inputs 0 and 1 are queries and keys.
std::vector<SequencePart> parts_of(const Call& call, const Mask& mask);

/// Rows of keys or values of one sequence.
class KeyRows {
 public:
  /// Side by side.
  KeyRows(const float* data, std::size_t stride) : stride_(stride), data_(data) {}
  KeyRows(const Operand& x, const SequencePart& part)
      : stride_(x.shape.back()),
        data_(x.places != nullptr ? x.data
              : x.shape[0] > 1    ? x.sequence(part.index)
                                  : x.data + part.first_key * stride_),
        places_(x.places != nullptr ? x.places + part.first_key : nullptr) {}

  const float* operator[](std::size_t row) const {
    return data_ + (places_ != nullptr ? places_[row] : row) * stride_;
  }
  std::size_t stride() const { return stride_; }
  /// Without those before `row`.
  KeyRows from(std::size_t row) const {
    KeyRows rest = *this;
    if (places_ != nullptr) {
      rest.places_ += row;
    } else {
      rest.data_ += row * stride_;
    }
    return rest;
  }
  /// The first n, side by side in `room`.
  KeyRows copied(std::size_t n, float* room) const {
    for (std::size_t row = 0; row < n; ++row) {
      std::copy_n((*this)[row], stride_, room + row * stride_);
    }
    return {room, stride_};
  }
  /// The end of the rows from `first` on that lie one after another, `end` at most.
  std::size_t run_end(std::size_t first, std::size_t end) const {
    if (places_ == nullptr) return end;
    std::size_t next = first + 1;
    while (next < end && places_[next] == places_[next - 1] + 1) ++next;
    return next;
  }

 private:
  std::size_t stride_;
  const float* data_;
  const std::uint32_t* places_ = nullptr;
};

}  // namespace kvcast::execute
