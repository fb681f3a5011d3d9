/// Fits KV Prediction's linear maps to a text, in closed form.
///
/// Regresses each base layer's keys (before the key norm and the rotation) and values on those of
/// its auxiliary layer, with a bias. The paper (Horton et al. 2024, arXiv:2410.08391, section 3)
/// trains the maps together with the auxiliary model, by gradient descent. For the maps alone, with
/// a squared error, the regression is the optimum.
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
  // The defaults below are ours: the paper fits by gradient descent and has none of them.
  /// Ridge penalty, relative to the inputs' variance (see RidgeRegression). It makes nearly
  /// dependent inputs solvable.
  double ridge = 1e-4;
  /// Tokens per window of text; each window starts at position 0. A text of about 5000 tokens makes
  /// ten windows.
  std::size_t window = 512;
  double held_out = 0.1;  ///< share of the windows held out to measure errors
  DType dtype = DType::FP32;
};

/// Error of predicted keys or values, before the base model's key norm.
struct PredictionError {
  double l1 = 0;  ///< mean absolute error
  double r2 = 0;  ///< 1 - squared error / squared distance from the mean of the fitted windows
};

struct KvpFitReport {
  PredictorConfig config;
  std::uint64_t parameters = 0;
  std::size_t fitted_tokens = 0;
  std::size_t held_out_tokens = 0;
  /// Errors on held-out windows, by layer.
  std::vector<PredictionError> key_layers;
  std::vector<PredictionError> value_layers;
  /// The same by position, over all layers.
  std::vector<PredictionError> key_positions;
  std::vector<PredictionError> value_positions;
};

/// `on_window` is called before each window. Throws Error, and writes nothing, if the models or the
/// layer map do not match, if the text is too short (fewer tokens to fit than unknowns per output
/// of the widest map) or leaves weights undetermined, and as CheckpointWriter does.
KvpFitReport fit_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                           std::span<const execute::TokenId> text,
                           const std::filesystem::path& output, const KvpFit& fit,
                           const Progress& on_window = nullptr);

/// Writes the identity predictor: the auxiliary model's keys and values unchanged. Throws Error if
/// a base layer has another number of features than its auxiliary layer, and as fit_predictor does.
KvpFitReport write_identity_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                                      const std::filesystem::path& output, const KvpFit& fit);

/// The longest prompt that a model reads, in tokens; without a known limit, the largest number.
std::size_t longest_prompt(const Architecture& a);

}  // namespace kvcast
