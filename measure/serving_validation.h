/// Compares simulated servers with measured ones: one simulation answers all figures of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "measure/serving_rows.h"
#include "measure/validation.h"
#include "model/io/weights/catalog.h"
#include "roofline/estimator.h"
#include "simulate/serving/model_server.h"

namespace kvcast::measure {

/// What was simulated for a run.
struct ServedFacts {
  std::string model;
  std::string hardware;
  std::string engine;
  std::string engine_version;
  std::string scheduler;
  std::uint64_t num_blocks = 0;
  std::uint64_t max_num_seqs = 0;
  std::uint64_t max_num_batched_tokens = 0;
  std::uint64_t requests = 0;  ///< of all pooled runs
  std::uint64_t peak_running = 0;
  std::uint64_t preemptions = 0;
  /// Of the mean time of a request, what it waits before its first step. Below a tenth the server
  /// is called below saturation; ours.
  double waiting_share = 0;
  bool is_below_saturation() const { return waiting_share < 0.1; }
};

struct ServedCase {
  std::size_t run = 0;  ///< of ServingValidation::runs
  ServedFigure figure;
  double predicted = 0;
  /// predicted / measured - 1
  double relative_error() const { return predicted / figure.measured - 1; }
};

struct ServingValidation {
  std::vector<ServedRun> runs;
  std::vector<ServedFacts> facts;  ///< of each run
  std::vector<ServedCase> cases;
  std::vector<UnmatchedRow> unmatched;
};

/// The server of a run. Throws Error: a model, a device, an engine or a platform of several devices
/// that the catalog does not have.
roofline::Configuration configuration_of(const ServedRun& run, const Catalog& catalog);
/// The text of `--scheduler`, with the engine's defaults where the run says nothing.
std::string scheduler_text(const ServedRun& run, const roofline::Configuration& configuration);

/// `traces`: the folder of the trace files. `on_progress` hears how many runs are done. Runs
/// without a forecast are listed as unmatched, each figure. Throws Error (Fault::Run).
ServingValidation validate_serving(std::vector<ServedRun> runs, const Catalog& catalog,
                                   const std::filesystem::path& traces,
                                   const std::function<void(std::size_t)>& on_progress = {});

}  // namespace kvcast::measure
