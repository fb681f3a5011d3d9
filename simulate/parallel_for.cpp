#include "simulate/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace kvcast::simulate {

void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& work,
                  const std::function<void(std::size_t)>& on_done) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // of `done`
  std::size_t done = 0;
  const auto take = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) {
        work(i);
        if (!on_done) continue;
        const std::lock_guard lock(mutex);
        on_done(++done);
      }
    } catch (...) {
      next = count;
      throw;
    }
  };
  if (threads == 0) threads = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  std::vector<std::future<void>> others;  // wait at their end, and keep what was thrown
  for (std::size_t t = 1; t < std::min(threads, count); ++t) {
    others.push_back(std::async(std::launch::async, take));
  }
  take();
  for (std::future<void>& other : others) other.get();
}

}  // namespace kvcast::simulate
