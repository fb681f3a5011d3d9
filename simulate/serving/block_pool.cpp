#include "simulate/serving/block_pool.h"

#include <algorithm>

#include "model/base/error.h"

namespace kvcast::simulate {

BlockPool::BlockPool(std::uint64_t blocks) : size_(blocks), num_free_(blocks) {
  KVCAST_ASSERT(blocks > 0 && blocks < none);
}

void BlockPool::leave_queue(Block block) {
  const Slot& slot = slots_[block];
  (slot.before == none ? first_ : slots_[slot.before].after) = slot.after;
  (slot.after == none ? last_ : slots_[slot.after].before) = slot.before;
}

void BlockPool::forget(Block block) {
  Slot& slot = slots_[block];
  if (!slot.entered) return;
  slot.entered = false;
  const auto found = by_piece_.find(slot.piece);
  if (found->second == block) {
    if (slot.next_alike == none) {
      by_piece_.erase(found);
    } else {
      found->second = slot.next_alike;
    }
  } else {
    Block before = found->second;
    while (slots_[before].next_alike != block) before = slots_[before].next_alike;
    slots_[before].next_alike = slot.next_alike;
  }
  slot.next_alike = none;
}

BlockPool::Block BlockPool::take() {
  KVCAST_ASSERT(num_free_ > 0);
  const bool is_new = slots_.size() < size_;
  const Block block = is_new ? static_cast<Block>(slots_.size()) : first_;
  if (is_new) {
    slots_.emplace_back();
  } else {
    forget(block);
    leave_queue(block);
  }
  first_holder(block);
  return block;
}

void BlockPool::hold(Block block) {
  if (slots_[block].holders > 0) {
    ++slots_[block].holders;
  } else {
    leave_queue(block);
    first_holder(block);
  }
}

void BlockPool::first_holder(Block block) {
  slots_[block].holders = 1;
  --num_free_;
  peak_ = std::max(peak_, size() - num_free_);
}

void BlockPool::release(Block block) {
  Slot& slot = slots_[block];
  KVCAST_ASSERT(slot.holders > 0);
  if (--slot.holders > 0) return;
  slot.before = last_;
  slot.after = none;
  (last_ == none ? first_ : slots_[last_].after) = block;
  last_ = block;
  ++num_free_;
}

void BlockPool::enter(Block block, std::uint64_t piece) {
  Slot& slot = slots_[block];
  KVCAST_ASSERT(slot.holders > 0 && !slot.entered);
  slot.entered = true;
  slot.piece = piece;
  const auto [found, is_new] = by_piece_.try_emplace(piece, block);
  if (is_new) return;
  Block last = found->second;
  while (slots_[last].next_alike != none) last = slots_[last].next_alike;
  slots_[last].next_alike = block;
}

std::optional<BlockPool::Block> BlockPool::find(std::uint64_t piece) const {
  const auto found = by_piece_.find(piece);
  if (found == by_piece_.end()) return {};
  return found->second;
}

}  // namespace kvcast::simulate
