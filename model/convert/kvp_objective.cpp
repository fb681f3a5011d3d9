#include "model/convert/kvp_objective.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/convert/kvp_fit.h"

namespace kvcast {
namespace {

using execute::TokenId;

/// Keys and values of each layer, [tokens, features].
struct Compared {
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
};

/// Collects what the nodes of these labels make.
execute::Request observing(std::span<const TokenId> tokens, const char* phase,
                           const std::string& key_label, const std::string& value_label,
                           Compared& compared) {
  execute::Request request;
  request.tokens = {{tokens.begin(), tokens.end()}};
  request.on_node = [=, &compared](const Graph& graph, const execute::NodeRun& run,
                                   std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[run.node];
    if (node.phase != phase || node.layer < 0) return;
    const bool key = node.label == key_label;
    if (!key && node.label != value_label) return;
    auto& layers = key ? compared.keys : compared.values;
    const execute::Operand& out = run.call->output;
    const auto layer = static_cast<std::size_t>(node.layer);
    layers.at(layer).assign(out.data, out.data + out.shape.elements());
  };
  return request;
}

/// Sums over windows.
class Sums {
 public:
  Sums(std::size_t layers, double z_loss) : z_loss_(z_loss), keys_(layers), values_(layers) {}

  /// logits [tokens, vocab_size]
  void add_loss(LanguageLoss& sum, std::span<const float> logits,
                std::span<const TokenId> targets) const {
    const std::size_t vocab = logits.size() / targets.size();
    for (std::size_t t = 0; t < targets.size(); ++t) {
      const std::span<const float> row = logits.subspan(t * vocab, vocab);
      const double largest = *std::max_element(row.begin(), row.end());
      double exponentials = 0;
      for (const float x : row) exponentials += std::exp(x - largest);
      const double log_sum = largest + std::log(exponentials);
      sum.cross_entropy += log_sum - row[targets[t]];
      sum.z_loss += z_loss_ * log_sum * log_sum;
    }
  }
  void add_difference(const Compared& predicted, const Compared& own) {
    const auto add = [](std::vector<Difference>& sums, const auto& a, const auto& b) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        KVCAST_ASSERT(a[i].size() == b[i].size() && !a[i].empty());
        for (std::size_t n = 0; n < a[i].size(); ++n) {
          sums[i].sum += std::abs(static_cast<double>(a[i][n]) - b[i][n]);
        }
        sums[i].count += static_cast<double>(a[i].size());
      }
    };
    add(keys_, predicted.keys, own.keys);
    add(values_, predicted.values, own.values);
  }
  std::vector<double> key_means() const { return means(keys_); }
  std::vector<double> value_means() const { return means(values_); }

 private:
  struct Difference {
    double sum = 0;
    double count = 0;
  };
  static std::vector<double> means(const std::vector<Difference>& sums) {
    std::vector<double> m;
    for (const Difference& d : sums) m.push_back(d.sum / d.count);
    return m;
  }
  double z_loss_;
  std::vector<Difference> keys_;
  std::vector<Difference> values_;
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

KvpObjective kvp_objective(
    const Checkpoint& base, const Checkpoint& auxiliary, const std::string& auxiliary_name,
    const std::string& predictor_name, std::span<const TokenId> text, std::size_t window,
    const KvpObjectiveWeights& weights,
    const std::function<void(std::uint64_t done, std::uint64_t all)>& on_window) {
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
  const bool norm = a.decoder.query_key_norm;
  Sums sums(layers, weights.z_loss);
  KvpObjective o;
  const std::size_t inputs = text.size() - 1;
  for (std::size_t first = 0; first < inputs; first += window) {
    if (on_window) on_window(first / window, (inputs + window - 1) / window);
    const std::size_t n = std::min(window, inputs - first);
    const std::span<const TokenId> tokens = text.subspan(first, n);
    const std::span<const TokenId> targets = text.subspan(first + 1, n);
    Compared ours{std::vector<std::vector<float>>(layers), std::vector<std::vector<float>>(layers)};
    Compared own = ours;
    sums.add_loss(o.base,
                  predicting
                      .run(observing(tokens, "predictor", norm ? "key_norm" : "predict_key",
                                     "predict_value", ours))
                      .logits,
                  targets);
    sums.add_loss(
        o.plain,
        plain.run(observing(tokens, "layers", norm ? "key_norm" : "key", "value", own)).logits,
        targets);
    execute::Request request;
    request.tokens = {{tokens.begin(), tokens.end()}};
    sums.add_loss(o.auxiliary, helping.run(request).logits, targets);
    sums.add_difference(ours, own);
    o.tokens += n;
  }
  for (LanguageLoss* loss : {&o.base, &o.plain, &o.auxiliary}) {
    loss->cross_entropy /= static_cast<double>(o.tokens);
    loss->z_loss /= static_cast<double>(o.tokens);
  }
  o.key_l1 = sums.key_means();
  o.value_l1 = sums.value_means();
  for (const double x : o.key_l1) o.consistency += x;
  for (const double x : o.value_l1) o.consistency += x;
  o.total = weights.base * o.base.sum() + weights.auxiliary * o.auxiliary.sum() +
            weights.consistency * o.consistency;
  return o;
}

}  // namespace kvcast
