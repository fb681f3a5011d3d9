/// `kvcast estimate --train`: a step of training instead of a request.
#pragma once

#include <string>

#include "cli/frame/command.h"
#include "cli/frame/request_options.h"
#include "roofline/training_forecast.h"

namespace kvcast::cli {

/// Of a sequence, where nothing else is said.
inline constexpr std::uint64_t default_seq_len = 2048;

struct TrainingFlags {
  bool train = false;
  std::string seq_len;  ///< empty: 2048, or the model's positions if these are fewer
  std::string recompute = "none";
  std::string optimizer = "adamw";
  std::string gradient_dtype;  ///< empty: that of the weights
  std::string state_dtype = "fp32";
  std::string zero = "0";
  std::string virtual_stages = "1";
  std::string loss_chunks = "1";
  double dropout = 0;

  void add_to(Command command);
  /// Throws Error for the others without --train.
  void check() const;
};

struct TrainingOutput {
  bool json = false;
  bool breakdown = false;
  std::string validation;  ///< stored errors beside the catalog's
};

/// Throws Error naming the flag for every wrong value.
void estimate_training(const RequestOptions& request, const TrainingFlags& flags,
                       const TrainingOutput& output, const Globals& globals);

}  // namespace kvcast::cli
