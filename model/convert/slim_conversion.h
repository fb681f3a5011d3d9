/// Makes a checkpoint for Slim attention of another one.
///
/// Each layer's attention gets the form that its weights allow: W_KV = W_K⁻¹·W_V and its kin exist
/// for nearly all matrices, but an ill-conditioned W_K makes values of rounding errors, so every
/// form is tried on real activations first.
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

/// Of fewer an error would be luck. Of sounds: positions of the encoder.
inline constexpr std::size_t fewest_calibration_tokens = 8;

struct SlimConversion {
  std::string option = "auto";  ///< auto, or the only form wanted: see slim_layers()
  double max_error = 0.01;      ///< of keys or values computed, relative; above it: the next form
  DType dtype = DType::FP32;    ///< of the weights written, and of the cache that errors are for
  execute::Request calibration;
};

/// One attention of one layer.
struct SlimLayerReport {
  std::size_t layer = 0;
  SlimSite site = SlimSite::Self;
  std::optional<double> key_condition;    ///< of W_K, where the shapes allow its inverse
  std::optional<double> value_condition;  ///< of W_V
  /// By form, then by storage: FP32, FP16, BF16.
  std::map<CacheForm, std::map<DType, double>> errors;
  std::map<CacheForm, double> largest_weight;  ///< of the computed weights, its magnitude
  CacheForm chosen = CacheForm::KeysAndValues;
  /// Why the forms before the chosen one were passed over, and what that one costs; empty: the
  /// first one was taken, at no price.
  std::string reason;
};

struct SlimReport : ConversionReport {
  std::vector<SlimLayerReport> layers;      ///< by layer, self-attention first
  std::size_t calibration_rows = 0;         ///< inputs of each self-attention
  std::optional<double> cross_cache_ratio;  ///< of the cross-attention cache
};

/// Layers of which some attention's computed keys and values are off by less than `error`.
std::size_t layers_under(const SlimReport& report, SlimSite site, CacheForm kind, DType storage,
                         double error);

/// Throws Error, and writes nothing, for a checkpoint converted already, a model that no wanted
/// form fits, weights beyond the range of fp16 (with "auto": where no other form serves the layer),
/// a calibration that is too short, and as Checkpoint and CheckpointWriter do.
SlimReport convert_to_slim(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const SlimConversion& conversion, const Progress& on_step = nullptr);

}  // namespace kvcast
