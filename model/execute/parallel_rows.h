/// Loops over rows that wake other threads when there is enough to do for them.
#pragma once

#include <algorithm>
#include <cstddef>

namespace kvcast::execute {

/// Below this many numbers waking a second thread costs more than it saves.
inline constexpr std::size_t parallel_elements = 16384;
/// Long vectors are cut into runs of this many numbers, so that all threads get some.
inline constexpr std::size_t run_elements = 4096;

/// f(r) for all rows, on all threads when the rows hold many numbers.
template <typename F>
void for_rows(std::size_t rows, std::size_t elements, F f) {
  if (elements < parallel_elements || rows < 2) {
    for (std::size_t r = 0; r < rows; ++r) f(r);
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::size_t r = 0; r < rows; ++r) f(r);
}

/// f(first, n) for consecutive runs of `elements` numbers.
template <typename F>
void for_runs(std::size_t elements, F f) {
  const std::size_t runs = (elements + run_elements - 1) / run_elements;
  for_rows(runs, elements, [&](std::size_t r) {
    const std::size_t first = r * run_elements;
    f(first, std::min(run_elements, elements - first));
  });
}

}  // namespace kvcast::execute
