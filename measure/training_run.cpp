#include "measure/training_run.h"

#include <memory>

#include <fmt/format.h>

namespace kvcast::measure {

std::string to_string(const TrainingRun& run) {
  return fmt::format(
      "{} micro-batches, recompute {}, {}states in {}, zero {}{}{}", run.micro_batches,
      name(run.recompute),
      run.gradients ? fmt::format("gradients in {}, ", name(*run.gradients)) : "", name(run.states),
      static_cast<int>(run.sharded),
      run.virtual_stages > 1 ? fmt::format(", {} virtual stages", run.virtual_stages) : "",
      run.dropout > 0 ? fmt::format(", dropout {}", run.dropout) : "");
}

std::function<roofline::Forecast(const roofline::DesignPoint&)> training_forecast(
    const roofline::Configuration& c, const TrainingRun& run) {
  TrainingOptions options;
  options.recompute = run.recompute;
  options.gradients = run.gradients;
  options.states = run.states;
  options.dropout = run.dropout;
  const auto forecaster = std::make_shared<const roofline::TrainingForecaster>(
      c, options, run.sharded, run.virtual_stages);
  return [forecaster, micro_batches = run.micro_batches](const roofline::DesignPoint& size) {
    roofline::Forecast forecast;
    forecast.ttft_s = forecaster->at({size.batch, size.prompt_len, micro_batches}).step_s;
    return forecast;
  };
}

}  // namespace kvcast::measure
