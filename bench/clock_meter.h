/// How fast the cores are while something else runs on them: a machine that is lent in part changes
/// speed within seconds, and a pass of a minute has no quiet moment to be measured in.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "model/execute/machine_probe.h"

namespace kvcast::execute {

/// A thread that does a third of a millisecond of multiply-adds twenty times a second, and counts
/// them against its own processor time: it takes under 1 % of one core.
class ClockMeter {
 public:
  ClockMeter() : sampler_([this] { sample(); }) {}
  ~ClockMeter() {
    stop_ = true;
    sampler_.join();
  }
  ClockMeter(const ClockMeter&) = delete;
  ClockMeter& operator=(const ClockMeter&) = delete;

  void restart() {
    const std::lock_guard lock(mutex_);
    rates_.clear();
  }
  /// FLOP/s of a core since restart(); waits for a first sample.
  double mean() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (!rates_.empty()) {
          double seconds_per_flop = 0;
          for (const double r : rates_) seconds_per_flop += 1 / r;
          return static_cast<double>(rates_.size()) / seconds_per_flop;
        }
      }
      std::this_thread::sleep_for(interval);
    }
  }

 private:
  static constexpr std::chrono::milliseconds interval{50};

  void sample() {
    while (!stop_) {
      const double rate = measure_core_fma_rate();
      {
        const std::lock_guard lock(mutex_);
        rates_.push_back(rate);
      }
      std::this_thread::sleep_for(interval);
    }
  }

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<double> rates_;
  std::thread sampler_;
};

}  // namespace kvcast::execute
