/// One block of memory for all intermediate results of a pass. Elements are floats.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/execute/floats.h"

namespace kvcast::execute {

/// Hands out ranges of one block: first where they fit, and neighbours that come free are joined.
/// It only counts, so that a pass can be laid out before the memory is there.
class RangePlanner {
 public:
  /// The first element of a free range of `count` elements.
  std::size_t take(std::size_t count);
  void give(std::size_t first, std::size_t count);
  /// Elements that all ranges so far fit in.
  std::size_t extent() const { return extent_; }

 private:
  struct Range {
    std::size_t first;
    std::size_t count;
  };
  std::vector<Range> free_;  ///< by position
  std::size_t end_ = 0;      ///< of the last range in use
  std::size_t extent_ = 0;
};

/// Blocks that stay to the end, cut from large pieces of memory, so that small ones lie in huge
/// pages too.
class FloatStore {
 public:
  FloatStore() = default;
  /// Cuts the first blocks from memory that outlives the store.
  explicit FloatStore(std::span<float> memory) : next_(memory.data()), left_(memory.size()) {}

  /// Uninitialised, aligned to 64 bytes. Not thread-safe.
  float* take(std::size_t count);

 private:
  std::vector<Floats> pieces_;
  float* next_ = nullptr;
  std::size_t left_ = 0;
};

/// The block; it grows to the largest pass and stays for the next one. Kernels have some of their
/// own, for what they need beside a layer's operands; a thread's stay as long as it.
class Arena {
 public:
  float* reserve(std::size_t count);
  std::size_t capacity() const { return capacity_; }

 private:
  Floats data_;
  std::size_t capacity_ = 0;
};

}  // namespace kvcast::execute
