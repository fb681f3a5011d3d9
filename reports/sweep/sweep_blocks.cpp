#include "reports/sweep/sweep_blocks.h"

#include <algorithm>

namespace kvcast::reports {
namespace {

/// Enough to keep the threads busy while the caller waits for a disk.
constexpr std::size_t slots_per_thread = 24;

}  // namespace

BlockList::BlockList(const SweepGrid& grid, PointRange range)
    : num_sizes_(grid.num_sizes()),
      blocks_per_configuration_((grid.num_sizes() + max_rows - 1) / max_rows),
      range_(range),
      begin_(range.first < range.last ? block_of(range.first) : 0),
      end_(range.first < range.last ? block_of(range.last - 1) + 1 : 0) {}

std::uint64_t BlockList::block_of(std::uint64_t point) const {
  return point / num_sizes_ * blocks_per_configuration_ + point % num_sizes_ / max_rows;
}

PointRange BlockList::operator[](std::uint64_t index) const {
  const std::uint64_t block = begin_ + index;
  const std::uint64_t configuration = block / blocks_per_configuration_;
  const std::uint64_t part = block % blocks_per_configuration_;
  const std::uint64_t first = configuration * num_sizes_ + part * max_rows;
  const std::uint64_t last = std::min(first + max_rows, (configuration + 1) * num_sizes_);
  return {std::max(first, range_.first), std::min(last, range_.last)};
}

BlockPool::BlockPool(const SweepGrid& grid, const BlockList& blocks, std::uint64_t first,
                     std::uint64_t stride, unsigned num_threads)
    : grid_(grid),
      blocks_(blocks),
      first_(first),
      stride_(stride),
      num_blocks_(blocks.size() > first ? (blocks.size() - first + stride - 1) / stride : 0) {
  const auto useful = static_cast<unsigned>(std::min<std::uint64_t>(num_threads, num_blocks_));
  slots_.resize(std::max(1u, useful) * slots_per_thread);
  for (unsigned i = 0; i < useful; ++i) threads_.emplace_back([this] { work(); });
}

BlockPool::~BlockPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::optional<RowBlock> BlockPool::take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[next_taken_ % slots_.size()];
  ready_.wait_for(lock, timeout, [&] { return slot.ready || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  if (!slot.ready) return std::nullopt;
  slot.ready = false;
  ++next_taken_;
  RowBlock block = std::move(slot.block);
  lock.unlock();
  room_.notify_one();
  return block;
}

void BlockPool::recycle(std::string&& text) {
  const std::lock_guard lock(mutex_);
  spare_texts_.push_back(std::move(text));
}

void BlockPool::work() {
  RowScratch scratch;
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] {
      return stop_ || next_started_ == num_blocks_ || next_started_ < next_taken_ + slots_.size();
    });
    if (stop_ || next_started_ == num_blocks_) return;
    const std::uint64_t index = next_started_++;
    const PointRange points = blocks_[first_ + index * stride_];
    const std::uint64_t configuration = points.first / grid_.num_sizes();
    if (!current_ || current_->index() != configuration) {
      current_ = std::make_shared<ConfigurationRows>(grid_, configuration);
    }
    const std::shared_ptr<ConfigurationRows> rows = current_;
    RowBlock block{points.last - points.first, 0, {}};
    if (!spare_texts_.empty()) {
      block.text = std::move(spare_texts_.back());
      block.text.clear();
      spare_texts_.pop_back();
    }
    lock.unlock();
    std::exception_ptr failure;
    try {
      const std::uint64_t origin = configuration * grid_.num_sizes();
      block.num_errors =
          rows->append(points.first - origin, points.last - origin, scratch, block.text);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      failure_ = failure;
      stop_ = true;
      room_.notify_all();
    } else {
      slots_[index % slots_.size()] = {true, std::move(block)};
    }
    ready_.notify_one();
  }
}

}  // namespace kvcast::reports
