#include "model/convert/kvp_objective.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/convert/kvp_fit.h"
#include "model/convert/observed_key_values.h"

namespace kvcast {
namespace {

using execute::TokenId;

/// Adds the loss of logits [tokens, vocab_size].
void add_loss(LanguageLoss& sum, std::span<const float> logits, std::span<const TokenId> targets,
              double z_loss) {
  const std::size_t vocab = logits.size() / targets.size();
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const std::span<const float> row = logits.subspan(t * vocab, vocab);
    const double largest = *std::max_element(row.begin(), row.end());
    double exponentials = 0;
    for (const float x : row) exponentials += std::exp(x - largest);
    const double log_sum = largest + std::log(exponentials);
    sum.cross_entropy += log_sum - row[targets[t]];
    sum.z_loss += z_loss * log_sum * log_sum;
  }
}

/// Means over tokens and features, over windows.
struct MeanDifference {
  double sum = 0;
  double count = 0;

  void add(const ActivationRows& a, const ActivationRows& b) {
    KVCAST_ASSERT(a.size() == b.size() && a.size() > 0);
    for (Eigen::Index i = 0; i < a.size(); ++i) {
      sum += std::abs(static_cast<double>(a.data()[i]) - b.data()[i]);
    }
    count += static_cast<double>(a.size());
  }
};

void check_weights(const KvpObjectiveWeights& weights) {
  for (const auto& [name, weight] :
       {std::pair{"base", weights.base}, std::pair{"auxiliary", weights.auxiliary},
        std::pair{"consistency", weights.consistency}, std::pair{"z-loss", weights.z_loss}}) {
    if (std::isfinite(weight) && weight >= 0) continue;
    throw Error(fmt::format("weight of the objective's {} part", name), fmt::format("{}", weight),
                "a finite number of at least 0");
  }
}

}  // namespace

KvpObjective kvp_objective(const Checkpoint& base, const Checkpoint& auxiliary,
                           const std::string& auxiliary_name, const std::string& predictor_name,
                           std::span<const TokenId> text, std::size_t window,
                           const KvpObjectiveWeights& weights, const Progress& on_window) {
  if (text.size() < 2) {
    throw Error("text", fmt::format("{} tokens", text.size()), "at least 2");
  }
  if (window == 0) throw Error("window", "0 tokens", "at least 1");
  check_weights(weights);
  window = std::min(
      {window, longest_prompt(base.architecture()), longest_prompt(auxiliary.architecture())});
  execute::SessionOptions all;
  all.logits = Logits::All;
  execute::SessionOptions predicted = all;
  predicted.methods = {
      {"kvp",
       {{"auxiliary", auxiliary_name}, {"predictor", predictor_name}, {"mode", "likelihood"}}}};
  const execute::Session predicting(base, predicted);
  const execute::Session plain(base, all);
  const execute::Session helping(auxiliary, all);

  const Architecture& a = base.architecture();
  const std::size_t layers = a.num_hidden_layers();
  const bool norm = normalizes_keys(a.decoder);
  ForKeysAndValues<std::vector<MeanDifference>> differences;
  for (auto& by_layer : differences) by_layer.resize(layers);
  KvpObjective o;
  const std::size_t inputs = text.size() - 1;
  for (std::size_t first = 0; first < inputs; first += window) {
    if (on_window) on_window(first / window, (inputs + window - 1) / window);
    const std::size_t n = std::min(window, inputs - first);
    const std::span<const TokenId> tokens = text.subspan(first, n);
    const std::span<const TokenId> targets = text.subspan(first + 1, n);
    const ObservedRun ours = observe_key_values(
        predicting, tokens, "predictor", {norm ? "key_norm" : "predict_key", "predict_value"});
    const ObservedRun own =
        observe_key_values(plain, tokens, "layers", {norm ? "key_norm" : "key", "value"});
    execute::Request request;
    request.tokens = {{tokens.begin(), tokens.end()}};
    add_loss(o.base, ours.generation.logits, targets, weights.z_loss);
    add_loss(o.plain, own.generation.logits, targets, weights.z_loss);
    add_loss(o.auxiliary, helping.run(request).logits, targets, weights.z_loss);
    for (std::size_t part = 0; part < differences.size(); ++part) {
      for (std::size_t i = 0; i < layers; ++i) {
        differences[part][i].add(ours.rows[part][i], own.rows[part][i]);
      }
    }
    o.tokens += n;
  }
  for (LanguageLoss* loss : {&o.base, &o.plain, &o.auxiliary}) {
    loss->cross_entropy /= static_cast<double>(o.tokens);
    loss->z_loss /= static_cast<double>(o.tokens);
  }
  for (const MeanDifference& d : differences[0]) o.key_l1.push_back(d.sum / d.count);
  for (const MeanDifference& d : differences[1]) o.value_l1.push_back(d.sum / d.count);
  for (const double x : o.key_l1) o.consistency += x;
  for (const double x : o.value_l1) o.consistency += x;
  o.total = weights.base * o.base.sum() + weights.auxiliary * o.auxiliary.sum() +
            weights.consistency * o.consistency;
  return o;
}

}  // namespace kvcast
