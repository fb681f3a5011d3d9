/// Evaluates KV Prediction's training objective: base model, auxiliary model and predictor.
///
/// In training the base model attends only to predicted keys and values, the current token's too.
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
  double z_loss = 1e-4;  ///< weight of the squared log of the softmax denominator
};

/// Means over tokens, in nats.
struct LanguageLoss {
  double cross_entropy = 0;
  double z_loss = 0;
  double sum() const { return cross_entropy + z_loss; }
};

struct KvpObjective {
  LanguageLoss base;   ///< the base model on predicted keys and values
  LanguageLoss plain;  ///< the base model on its own; not part of the objective
  LanguageLoss auxiliary;
  /// Mean absolute difference of predicted and true keys (after the key norm, before the rotation)
  /// and values, by base layer.
  std::vector<double> key_l1;
  std::vector<double> value_l1;
  double consistency = 0;  ///< the sum of these differences
  double total = 0;        ///< the weighted sum
  std::size_t tokens = 0;  ///< number of predicted tokens
};

/// The names are those of `kvp:auxiliary=` and `predictor=`. The text is read in windows of
/// `window` tokens, or fewer if a model cannot read so many; each starts at position 0, and the
/// last token of the text is only a target. Throws Error for a text of fewer than 2 tokens, for a
/// weight that is negative or not finite, and as execute::Session does.
KvpObjective kvp_objective(const Checkpoint& base, const Checkpoint& auxiliary,
                           const std::string& auxiliary_name, const std::string& predictor_name,
                           std::span<const execute::TokenId> text, std::size_t window,
                           const KvpObjectiveWeights& weights = {},
                           const Progress& on_window = nullptr);

}  // namespace kvcast
