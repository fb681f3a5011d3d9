/// Blocks of a sweep's rows, evaluated on threads and handed out in grid order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "reports/sweep/sweep_rows.h"

namespace kvcast::reports {

/// Points `first` to `last` (excluded) of a grid.
struct PointRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

/// Cuts a range of points into blocks of at most `max_rows` rows of one configuration.
class BlockList {
 public:
  static constexpr std::uint64_t max_rows = 2048;
  BlockList(const SweepGrid& grid, PointRange range);

  std::uint64_t size() const { return end_ - begin_; }
  PointRange operator[](std::uint64_t index) const;

 private:
  /// The number of the block that holds a point, counted from the grid's first.
  std::uint64_t block_of(std::uint64_t point) const;

  std::uint64_t num_sizes_;
  std::uint64_t blocks_per_configuration_;
  PointRange range_;
  std::uint64_t begin_;
  std::uint64_t end_;
};

struct RowBlock {
  std::uint64_t num_rows = 0;
  std::uint64_t num_errors = 0;
  std::string text;  ///< complete lines
};

/// Evaluates blocks `first`, `first + stride`, ... of a list on threads of its own, some way ahead
/// of the caller.
class BlockPool {
 public:
  BlockPool(const SweepGrid& grid, const BlockList& blocks, std::uint64_t first,
            std::uint64_t stride, unsigned num_threads);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Blocks not taken yet.
  std::uint64_t left() const { return num_blocks_ - next_taken_; }
  /// The next block in order, or nothing if it is not ready in time. Rethrows what a thread threw.
  std::optional<RowBlock> take(std::chrono::milliseconds timeout);
  /// Hands the buffer of a taken block back.
  void recycle(std::string&& text);

 private:
  struct Slot {
    bool ready = false;
    RowBlock block;
  };
  void work();

  const SweepGrid& grid_;
  const BlockList& blocks_;
  const std::uint64_t first_;
  const std::uint64_t stride_;
  const std::uint64_t num_blocks_;
  std::mutex mutex_;
  std::condition_variable room_;   ///< a slot is free, or it is time to stop
  std::condition_variable ready_;  ///< a block is ready
  std::vector<Slot> slots_;        ///< block i in slot i modulo their number
  std::vector<std::string> spare_texts_;
  std::shared_ptr<ConfigurationRows> current_;  ///< of the block started last
  std::uint64_t next_started_ = 0;
  std::uint64_t next_taken_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvcast::reports
