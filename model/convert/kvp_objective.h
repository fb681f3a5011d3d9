/// KV Prediction's training objective, as an evaluation of three models together.
///
/// In training the base attends to predicted keys and values alone, each token's own among them.
/// Source: apple/corenet, corenet/loss_fn/language_modeling/cross_entropy_for_kv_prediction.py; the
/// weights of the released configurations, projects/kv-prediction/openelm/*.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/convert/conversion_source.h"
#include "model/execute/generate.h"

namespace kvcast {

struct KvpObjectiveWeights {
  double base = 1;
  double auxiliary = 1;
  double consistency = 1;
  double z_loss = 1e-4;  ///< of the squared logarithm of the softmax's denominator
};

/// Means over tokens, in nats.
struct LanguageLoss {
  double cross_entropy = 0;
  double z_loss = 0;
  double sum() const { return cross_entropy + z_loss; }
};

struct KvpObjective {
  LanguageLoss base;   ///< on predicted keys and values
  LanguageLoss plain;  ///< of the base on its own ones, which is not part of the objective
  LanguageLoss auxiliary;
  /// Mean absolute differences by base layer: of keys after the key norm, before the rotation, and
  /// of values.
  std::vector<double> key_l1;
  std::vector<double> value_l1;
  double consistency = 0;  ///< the sum of all of them
  double total = 0;        ///< weighted
  std::size_t tokens = 0;  ///< predicted
};

/// The names are those of `kvp:auxiliary=` and `predictor=`. The text is read `window` tokens at a
/// time, or as many as both models can read, each window from position 0 on; the last token is a
/// target only. Throws Error: a text of fewer than 2 tokens, a weight that is negative or not
/// finite, and as execute::Session does.
KvpObjective kvp_objective(const Checkpoint& base, const Checkpoint& auxiliary,
                           const std::string& auxiliary_name, const std::string& predictor_name,
                           std::span<const execute::TokenId> text, std::size_t window,
                           const KvpObjectiveWeights& weights = {},
                           const Progress& on_window = nullptr);

}  // namespace kvcast
