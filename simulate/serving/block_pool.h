/// The blocks of a paged key-value cache: who has them, which are free, and which hold a known
/// piece of a prompt.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

namespace kvcast::simulate {

/// Blocks that nobody holds stand in a queue: the next one handed out is its first. Such a block
/// keeps the piece of a prompt that was entered for it until it is handed out.
class BlockPool {
 public:
  using Block = std::uint32_t;
  /// Free from the start: 0 to `blocks` - 1, in this order.
  explicit BlockPool(std::uint64_t blocks);

  std::uint64_t size() const { return size_; }
  std::uint64_t num_free() const { return num_free_; }
  /// The most that were held at once.
  std::uint64_t peak() const { return peak_; }

  /// Hands out the first free block, of which there must be one.
  Block take();
  /// One holder more; a free block leaves the queue.
  void hold(Block block);
  /// One holder less; the last one puts it at the end of the queue.
  void release(Block block);
  bool is_free(Block block) const { return slots_[block].holders == 0; }

  /// The block holds this piece of a prompt. Several may hold the same.
  void enter(Block block, std::uint64_t piece);
  /// The one that was entered first.
  std::optional<Block> find(std::uint64_t piece) const;

 private:
  static constexpr Block none = std::numeric_limits<Block>::max();
  struct Slot {
    std::uint32_t holders = 0;
    bool entered = false;
    Block before = none;  ///< in the queue
    Block after = none;
    Block next_alike = none;  ///< with the same piece, entered later
    std::uint64_t piece = 0;
  };
  void leave_queue(Block block);
  void first_holder(Block block);
  void forget(Block block);

  const std::uint64_t size_;
  std::vector<Slot> slots_;  ///< of the blocks that were ever handed out: the first ones
  Block first_ = none;       ///< of the queue behind the blocks that have no slot yet
  Block last_ = none;
  std::uint64_t num_free_ = 0;
  std::uint64_t peak_ = 0;
  std::unordered_map<std::uint64_t, Block> by_piece_;  ///< the first of those alike
};

}  // namespace kvcast::simulate
