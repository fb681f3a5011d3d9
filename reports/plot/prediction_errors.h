/// How far predicted keys and values are off, over layers and over positions, as KV Prediction's
/// figures 6 and 7 show it.
#pragma once

#include <filesystem>

#include "model/convert/kvp_fit.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

/// Columns axis ("layer" or "position"), index, part ("key" or "value"), l1, r2. Throws Error.
void write_prediction_csv(const KvpFitReport& report, const std::filesystem::path& path);

/// What is drawn of each prediction.
enum class ErrorMeasure {
  L1,  ///< the mean absolute error
  R2,  ///< the share of the variance that is predicted; none where nothing varies
};

/// Errors of keys and of values over the base model's layers, or over positions.
Plot prediction_layer_plot(const KvpFitReport& report, ErrorMeasure measure);
Plot prediction_position_plot(const KvpFitReport& report, ErrorMeasure measure);

}  // namespace kvcast::reports
