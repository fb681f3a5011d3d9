/// What this machine can do at most, measured in a moment: the roofs that runs are held against.
#pragma once

namespace kvcast::execute {

/// fp32 FLOP/s of multiply-adds in registers on all threads, a multiply-add as 2.
double measure_fma_rate(double seconds = 0.05);
/// Bytes per second that all threads read from memory, from a block larger than the caches.
double measure_read_bandwidth(double seconds = 0.1);

/// OpenMP's threads from now on; 0 leaves them as they are. Returns how many there are.
int use_threads(int threads);

}  // namespace kvcast::execute
