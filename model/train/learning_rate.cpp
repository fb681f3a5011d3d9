#include "model/train/learning_rate.h"

#include <cmath>
#include <numbers>

namespace kvcast::train {

double LearningRate::at(std::uint64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const std::uint64_t falling = steps - warmup_steps;
  if (falling < 2 || step + 1 >= steps) return step + 1 >= steps && falling > 1 ? last : peak;
  const double way = static_cast<double>(step - warmup_steps) / static_cast<double>(falling - 1);
  return last + (peak - last) * (1 + std::cos(std::numbers::pi * way)) / 2;
}

}  // namespace kvcast::train
