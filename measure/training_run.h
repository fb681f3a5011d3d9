/// A step of training that was timed, and its forecast.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "model/io/weights/catalog.h"
#include "roofline/training_forecast.h"

namespace kvcast::measure {

/// How a step was trained, beside its sizes, its kernels and its replicas.
struct TrainingRun {
  std::uint64_t micro_batches = 1;  ///< of each replica
  Recompute recompute = Recompute::None;
  std::optional<DType> gradients = {};  ///< absent: as the weights
  DType states = DType::FP32;
  roofline::ShardedStates sharded = roofline::ShardedStates::None;
  std::uint64_t virtual_stages = 1;  ///< of each stage of a pipeline
  double dropout = 0;
};

/// "2 micro-batches, recompute full, states in fp32, zero 3[, 2 virtual stages][, dropout 0.1]"
std::string to_string(const TrainingRun& run);

/// A forecast whose ttft_s is the step's time; `prompt_len` of a size are the tokens of a sequence.
std::function<roofline::Forecast(const roofline::DesignPoint&)> training_forecast(
    const roofline::Configuration& configuration, const TrainingRun& run);

}  // namespace kvcast::measure
