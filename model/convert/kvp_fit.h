/// Fits KV Prediction's linear maps to a text, in closed form.
///
/// Each base layer's keys (as projected: before the key norm and the rotation) and values are
/// regressed on those of its auxiliary layer, with a bias. The paper (Horton et al. 2024,
/// arXiv:2410.08391, section 3) trains the maps and the auxiliary by gradient; for the maps alone
/// and a squared error this is the optimum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "model/base/dtype.h"
#include "model/config/kv_predictor.h"
#include "model/convert/conversion_source.h"
#include "model/execute/generate.h"

namespace kvcast {

struct KvpFit {
  LayerMap map;
  // The paper fits by gradient and has none of these; they are ours.
  /// See RidgeRegression; a share of the inputs' spread, so that inputs which others nearly
  /// determine can be solved for.
  double ridge = 1e-4;
  /// Tokens that the models read at a time, from position 0 on: a text of some thousands of tokens
  /// makes ten of them.
  std::size_t window = 512;
  double held_out = 0.1;  ///< share of the windows that errors are measured on: one of ten
  DType dtype = DType::FP32;
};

/// Of predicted keys or values, before the base's key norm.
struct PredictionError {
  double l1 = 0;  ///< mean absolute error
  double r2 = 0;  ///< 1 - squared error / squared distance from the mean of the fitted windows
};

struct KvpFitReport {
  PredictorConfig config;
  std::uint64_t parameters = 0;
  std::size_t fitted_tokens = 0;
  std::size_t held_out_tokens = 0;
  /// On held-out windows.
  std::vector<PredictionError> key_layers;
  std::vector<PredictionError> value_layers;
  std::vector<PredictionError> key_positions;  ///< of all layers
  std::vector<PredictionError> value_positions;
};

/// `on_window` is called before each window. Throws Error: a pair or a map that does not fit, a
/// text too short (fewer tokens to fit than an output of the widest map has unknowns), weights that
/// the text leaves undetermined, and as CheckpointWriter does; then nothing is written.
KvpFitReport fit_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                           std::span<const execute::TokenId> text,
                           const std::filesystem::path& output, const KvpFit& fit,
                           const Progress& on_window = nullptr);

/// Writes the predictor that hands on what it gets: the identity and no bias. Throws Error where a
/// base layer's features are not those of its auxiliary layer, and as fit_predictor does.
KvpFitReport write_identity_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                                      const std::filesystem::path& output, const KvpFit& fit);

/// The longest prompt that a model reads, tokens; no limit known: the largest number.
std::size_t longest_prompt(const Architecture& a);

}  // namespace kvcast
