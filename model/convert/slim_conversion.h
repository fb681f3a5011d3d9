/// Converts a checkpoint to Slim attention.
///
/// Each layer's attention gets a form that its weights allow. W_KV = W_K⁻¹·W_V and the like exist
/// for nearly all matrices, but an ill-conditioned W_K turns rounding errors into values. So every
/// form is first tested on real activations.
/// Source: Graef et al. 2025 (arXiv:2503.05840); OpenMachine-ai/transformer-tricks, commit 379556c,
/// for what goes wrong.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config/slim_forms.h"
#include "model/convert/conversion_source.h"
#include "model/execute/generate.h"

namespace kvcast {

/// With fewer tokens the measured error is unreliable. For audio: positions of the encoder.
inline constexpr std::size_t fewest_calibration_tokens = 8;

struct SlimConversion {
  std::string option = "auto";  ///< auto, or a single form: see slim_layers()
  double max_error = 0.01;      ///< largest relative error of recomputed keys and values
  DType dtype = DType::FP32;    ///< dtype of the written weights, and of the cache in the errors
  execute::Request calibration;
};

/// One attention of one layer.
struct SlimLayerReport {
  std::size_t layer = 0;
  SlimSite site = SlimSite::Self;
  std::optional<double> key_condition;    ///< of W_K, if its shape allows an inverse
  std::optional<double> value_condition;  ///< of W_V
  /// Relative errors by form, then by dtype of the cache: FP32, FP16, BF16.
  std::map<CacheForm, std::map<DType, double>> errors;
  std::map<CacheForm, double> largest_weight;  ///< largest magnitude of the computed weights
  CacheForm chosen = CacheForm::KeysAndValues;
  /// Why earlier forms were rejected, and what the chosen one costs; empty if the first form was
  /// chosen and costs nothing.
  std::string reason;
};

struct SlimReport : ConversionReport {
  std::vector<SlimLayerReport> layers;      ///< by layer, self-attention first
  std::size_t calibration_rows = 0;         ///< tokens that each self-attention was tested on
  std::optional<double> cross_cache_ratio;  ///< bytes of the cross-attention cache, after / before
};

/// The number of layers whose attention at `site` has an error below `error` in this form.
std::size_t layers_under(const SlimReport& report, SlimSite site, CacheForm kind, DType storage,
                         double error);

/// Throws Error, and writes nothing, for a checkpoint that is converted already, for a model that
/// no allowed form fits, for weights beyond the range of fp16 (with "auto": only if the layer has
/// no other form), for a calibration that is too short, and as Checkpoint and CheckpointWriter do.
SlimReport convert_to_slim(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const SlimConversion& conversion, const Progress& on_step = nullptr);

}  // namespace kvcast
