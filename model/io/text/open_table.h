/// Hash tables of tokens and of their pairs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcast::text {

/// The slots of a hash table with open addressing. At most half are taken, so that most look-ups
/// read one slot.
template <typename Slot>
class OpenTable {
 public:
  OpenTable(std::size_t entries, const Slot& free) : slots_(std::bit_ceil(2 * entries + 1), free) {}

  std::size_t entries() const { return slots_.size() / 2; }  ///< it has room for

  /// The place of an entry, or of the free slot for it: the first from the hash's on where
  /// `is_found` holds.
  template <typename IsFound>
  std::size_t find(std::uint64_t hash, IsFound is_found) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = static_cast<std::size_t>(hash) & mask;
    while (!is_found(slots_[place])) place = (place + 1) & mask;
    return place;
  }
  const Slot& operator[](std::size_t place) const { return slots_[place]; }
  Slot& operator[](std::size_t place) { return slots_[place]; }

 private:
  std::vector<Slot> slots_;
};

}  // namespace kvcast::text
