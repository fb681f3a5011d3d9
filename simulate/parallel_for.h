/// Work that falls into independent pieces, on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace kvcast::simulate {

/// Calls work(i) for each i below `count`, in that order but side by side on `threads` threads; 0:
/// as many as the machine has. After each, `on_done` is told how many are done, one call at a time.
/// Ends early when one throws, with what it threw.
void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& work,
                  const std::function<void(std::size_t)>& on_done = {});

}  // namespace kvcast::simulate
