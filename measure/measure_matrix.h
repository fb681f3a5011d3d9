/// Measures this machine on a matrix of models, methods, prompts and batches, each row beside its
/// forecast, into a CSV that grows row by row and goes on where it was interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "measure/measured_rows.h"
#include "measure/rounds.h"
#include "model/execute/narrow_product.h"
#include "model/forward/recorder.h"
#include "model/io/weights/catalog.h"
#include "roofline/forecast.h"
#include "roofline/hardware.h"

namespace kvcast::measure {

struct MeasurePoint {
  std::string model;   ///< catalog name, configuration or checkpoint folder
  std::string method;  ///< as parse_methods takes it
  Kernels attention = Kernels::Fused;
  execute::Arithmetic arithmetic = execute::Arithmetic::FP32;
  DType cache = DType::FP32;
  roofline::DesignPoint size = {};
};

/// How many ranks read the prompt: 1 for methods of one process.
std::uint64_t num_ranks(const MeasurePoint& point);

/// Whether a model is a GGUF file or a folder with weights, which runs of one process keep as they
/// are stored, and ranks in fp32. Other models get random weights.
bool has_weights(const std::string& model);

/// An empty list stands for its default.
template <typename T>
std::vector<T> or_default(const std::vector<T>& given, std::vector<T> fallback) {
  return given.empty() ? std::move(fallback) : given;
}

/// What the matrix spans; an empty list stands for its default.
struct MeasureAxes {
  std::vector<std::string> models = {};   ///< smollm2-135m ... tinyllama-1.1b
  std::vector<std::string> methods = {};  ///< default: a list by model that needs no other files
  std::vector<Kernels> attention = {};    ///< both
  std::vector<execute::Arithmetic> arithmetic = {};  ///< fp32
  std::vector<DType> caches = {};                    ///< fp32
  std::vector<std::uint64_t> batch = {};
  std::vector<std::uint64_t> prompt_len = {};
  std::uint64_t output_len = 16;
  std::uint64_t ranks = 1;  ///< of kvr and tsp among the default methods; 1: neither is
  bool quick = false;       ///< the two smallest models, fewer sizes
};

/// All combinations that exist: a method must fit its model and run a batch together, and a prompt
/// fit its positions. Models slowest, so that each is loaded once for a method. Of the default
/// sizes the largest are left out. Throws Error when a model cannot be read or no combination
/// exists.
std::vector<MeasurePoint> measure_matrix(const MeasureAxes& axes, const Catalog& catalog);

struct MeasureOptions : MeasuredRowsOptions {
  roofline::Hardware hardware;  ///< of the forecasts: this machine, calibrated
  std::uint64_t seed = 1;       ///< of random weights
  int threads = 0;              ///< that the executor has been told to use
  unsigned rounds = 5;          ///< timed, after one warm-up run
  /// For points that several ranks run: calibrated with all ranks busy.
  std::optional<roofline::Hardware> rank_hardware = {};
  /// Runs such a point once, and may check_stop.
  std::function<RunSeconds(const MeasurePoint&)> run_ranks = nullptr;
  /// Called for a row whose rounds spread too far, which is kept then; null: such a row is an
  /// Error.
  std::function<void(const std::string&)> on_unsettled = nullptr;
};

/// Of rounds that spread too far: calls on_unsettled, or throws Error (Fault::Run) where there is
/// none. `row`: what was run; `what`: "TTFT".
void tell_unsettled(const std::string& row, const char* what, const Rounds& rounds,
                    const MeasureOptions& options);

/// Columns as kvcast's own measurement CSV has them: medians of the rounds and their spreads
/// (Rounds::spread), with the forecasts of the hardware. What cannot run is a row with the reason
/// in `error`. Throws Error as SweepFile does, among others for rows of another matrix or hardware
/// file, and (Fault::Run) when the rounds of a row spread too far; the rows before it are kept.
MeasuredRows measure(const std::vector<MeasurePoint>& points, const Catalog& catalog,
                     const MeasureOptions& options);

}  // namespace kvcast::measure
