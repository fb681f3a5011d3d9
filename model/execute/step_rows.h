/// Where the rows of a pass's sequences lie: in a batch of sequences of one length, or side by side
/// in one row of unequal ones (the pass "step", model/record/step_recording.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "model/execute/cache_rows.h"
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

  /// Those of states (model/forward/state_space.h), by the rows that they keep of a sequence.
  std::map<std::uint64_t, std::vector<std::uint32_t>> state_places;

  /// The rows of new tokens in a tensor that has them behind each sequence's cached ones, or behind
  /// `kept` rows of each.
  std::vector<std::size_t> new_rows(std::optional<std::size_t> kept = {}) const;
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

/// Rows of keys or values of one sequence. Those in a narrow type are read as copies.
class KeyRows {
 public:
  /// Side by side.
  KeyRows(const float* data, std::size_t stride) : KeyRows(data, stride, nullptr) {}
  KeyRows(const Operand& x, const SequencePart& part) : KeyRows(x.data, x.shape.back(), x.form) {
    if (x.places != nullptr) {
      places_ = x.places + part.first_key;
    } else {
      data_ += x.shape[0] > 1 ? part.index * (x.batch_stride / stride_) * row_bytes_
                              : part.first_key * row_bytes_;
    }
  }

  /// Not in a narrow type.
  const float* operator[](std::size_t row) const {
    return reinterpret_cast<const float*>(bytes(row));
  }
  const std::byte* bytes(std::size_t row) const {
    return data_ + (places_ != nullptr ? places_[row] : row) * row_bytes_;
  }
  bool is_narrow() const { return form_ != nullptr; }
  std::size_t stride() const { return stride_; }
  std::size_t row_bytes() const { return row_bytes_; }
  /// Without those before `row`.
  KeyRows from(std::size_t row) const {
    KeyRows rest = *this;
    if (places_ != nullptr) {
      rest.places_ += row;
    } else {
      rest.data_ += row * row_bytes_;
    }
    return rest;
  }
  /// Features [first, first + count) of a row.
  void copy(std::size_t row, std::size_t first, std::size_t count, float* out) const {
    if (form_ != nullptr) return widen_row(*form_, bytes(row), first, count, out);
    std::copy_n((*this)[row] + first, count, out);
  }
  /// The first n, side by side in `room`.
  KeyRows copied(std::size_t n, float* room) const {
    for (std::size_t row = 0; row < n; ++row) copy(row, 0, stride_, room + row * stride_);
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
  KeyRows(const float* data, std::size_t stride, const CacheForm* form)
      : stride_(stride),
        row_bytes_(form != nullptr ? form->row_bytes() : stride * sizeof(float)),
        data_(reinterpret_cast<const std::byte*>(data)),
        form_(form) {}

  std::size_t stride_;
  std::size_t row_bytes_;
  const std::byte* data_;
  const CacheForm* form_;
  const std::uint32_t* places_ = nullptr;
};

}  // namespace kvcast::execute
