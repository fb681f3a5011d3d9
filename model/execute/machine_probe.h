/// What this machine can do at most, measured in a moment: the roofs that runs are held against.
#pragma once

#include <cstddef>
#include <optional>

#include "model/execute/narrow_product.h"

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

/// FLOP/s of a product of 512 rows with a matrix of 1024 x 1024 in this arithmetic, on all threads;
/// the matrix is stored in fp32, bf16 or Q8_0.
double measure_product_rate(Arithmetic arithmetic);

/// Physical memory, bytes.
double machine_memory_bytes();

/// Peak resident memory of this process, bytes; 0 where the system does not report it.
double peak_resident_bytes();
/// From now on that is the peak from now on. Returns what is resident now; none where the system
/// cannot.
std::optional<double> restart_peak_memory();

/// OpenMP's threads from now on; 0 leaves them as they are. Returns how many there are.
int use_threads(int threads);

}  // namespace kvcast::execute
