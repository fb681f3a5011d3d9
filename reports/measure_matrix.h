/// Measures this machine on a matrix of models, methods, prompts and batches, each row beside its
/// forecast, into a CSV that grows row by row and goes on where it was interrupted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/catalog.h"
#include "model/recorder.h"
#include "reports/measured_rows.h"
#include "roofline/forecast.h"
#include "roofline/hardware.h"

namespace kvcast::reports {

struct MeasurePoint {
  std::string model;   ///< catalog name, configuration or checkpoint folder
  std::string method;  ///< as parse_methods takes it
  Kernels attention = Kernels::Fused;
  roofline::DesignPoint size;
};

/// What the matrix spans; an empty list stands for its default.
struct MeasureAxes {
  std::vector<std::string> models = {};   ///< smollm2-135m ... tinyllama-1.1b
  std::vector<std::string> methods = {};  ///< each model's own list, which needs no other files
  std::vector<Kernels> attention = {};    ///< both
  std::vector<std::uint64_t> batch = {};
  std::vector<std::uint64_t> prompt_len = {};
  std::uint64_t output_len = 16;
  bool quick = false;  ///< the two smallest models, fewer sizes
};

/// All combinations that exist: a method must fit its model, and a prompt its positions. Models
/// slowest, so that each is loaded once for a method. Of the default sizes the largest are left
/// out. Throws Error when a model cannot be read or no combination exists.
std::vector<MeasurePoint> measure_matrix(const MeasureAxes& axes, const Catalog& catalog);

struct MeasureOptions : MeasuredRowsOptions {
  roofline::Hardware hardware;  ///< of the forecasts: this machine, calibrated
  std::uint64_t seed = 1;       ///< of random weights
  unsigned rounds = 3;          ///< timed, behind one that is not; a row has their medians
};

/// Columns as kvcast's own measurement CSV has them, with the forecasts of the hardware. What
/// cannot run is a row with the reason in `error`. Throws Error as SweepFile does, among others for
/// rows of another matrix or hardware file.
MeasuredRows measure(const std::vector<MeasurePoint>& points, const Catalog& catalog,
                     const MeasureOptions& options);

}  // namespace kvcast::reports
