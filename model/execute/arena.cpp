#include "model/execute/arena.h"

#include <algorithm>

namespace kvcast::execute {
namespace {

/// Ranges begin on cache lines.
constexpr std::size_t granule = 16;

std::size_t rounded(std::size_t count) { return (count + granule - 1) / granule * granule; }

}  // namespace

std::size_t RangePlanner::take(std::size_t count) {
  count = rounded(count);
  // The tightest hole wastes least.
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->count >= count && (best == free_.end() || range->count < best->count)) best = range;
  }
  if (best != free_.end()) {
    const std::size_t first = best->first;
    best->first += count;
    best->count -= count;
    if (best->count == 0) free_.erase(best);
    return first;
  }
  const std::size_t first = end_;
  end_ += count;
  extent_ = std::max(extent_, end_);
  return first;
}

void RangePlanner::give(std::size_t first, std::size_t count) {
  count = rounded(count);
  const auto next = std::find_if(free_.begin(), free_.end(),
                                 [&](const Range& range) { return range.first > first; });
  auto range = free_.insert(next, {first, count});
  if (range != free_.begin() && (range - 1)->first + (range - 1)->count == range->first) {
    (range - 1)->count += range->count;
    range = free_.erase(range) - 1;
  }
  if (range + 1 != free_.end() && range->first + range->count == (range + 1)->first) {
    range->count += (range + 1)->count;
    free_.erase(range + 1);
  }
  if (!free_.empty() && free_.back().first + free_.back().count == end_) {
    end_ = free_.back().first;
    free_.pop_back();
  }
}

float* FloatStore::take(std::size_t count) {
  constexpr std::size_t piece = std::size_t{8} << 20;  // 32 MiB
  count = rounded(count);
  if (count > left_) {
    // Large blocks get a piece of their own, and the current one goes on.
    if (count > piece / 4) return pieces_.emplace_back(allocate_floats(count)).get();
    next_ = pieces_.emplace_back(allocate_floats(piece)).get();
    left_ = piece;
  }
  float* block = next_;
  next_ += count;
  left_ -= count;
  return block;
}

float* Arena::reserve(std::size_t count) {
  if (count > capacity_) {
    data_.reset();
    capacity_ = 0;
    data_ = allocate_floats(count);
    capacity_ = count;
  }
  return data_.get();
}

}  // namespace kvcast::execute
