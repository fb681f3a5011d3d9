/// The learning rate of each step: a linear warm-up, then half a cosine.
#pragma once

#include <cstdint>

namespace kvcast::train {

struct LearningRate {
  double peak = 3e-4;
  double last = 0;  ///< of the last step; the cosine ends there
  std::uint64_t warmup_steps = 0;
  std::uint64_t steps = 1;

  /// Of step 0, 1, ...: peak/warmup_steps, 2·peak/warmup_steps, ... up to the peak, then down.
  double at(std::uint64_t step) const;
};

}  // namespace kvcast::train
