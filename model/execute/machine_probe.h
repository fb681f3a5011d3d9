/// What this machine can do at most, measured in a moment: the roofs that runs are held against.
#pragma once

#include <cstddef>

namespace kvcast::execute {

/// fp32 FLOP/s of multiply-adds in registers on all threads, a multiply-add as 2.
double measure_fma_rate(double seconds = 0.05);
/// Likewise of the core that runs the calling thread, by the thread's own processor time: in a
/// third of a millisecond, also while other threads want the core.
double measure_core_fma_rate();
/// More bytes than caches hold.
inline constexpr std::size_t beyond_caches = std::size_t{256} << 20;
/// Bytes per second that all threads read, each its part of a block.
double measure_read_bandwidth(double seconds = 0.1, std::size_t block_bytes = beyond_caches);

/// Physical memory, bytes.
double machine_memory_bytes();

/// OpenMP's threads from now on; 0 leaves them as they are. Returns how many there are.
int use_threads(int threads);

}  // namespace kvcast::execute
