#include "model/convert/kvp_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/checkpoint_writer.h"
#include "model/convert/observed_key_values.h"
#include "model/convert/ridge_regression.h"

namespace kvcast {
namespace {

using execute::TokenId;

/// Ours: the shortest window, so that a last one of a few tokens is neither fitted nor held out.
constexpr std::size_t fewest_tokens = 8;

/// Base layers that one auxiliary layer serves.
struct Served {
  std::size_t source = 0;
  std::vector<std::size_t> layers;
};

std::vector<Served> served_layers(const LayerMap& map) {
  std::vector<Served> all;
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (all.empty() || all.back().source != map[i]) all.push_back({map[i], {}});
    all.back().layers.push_back(i);
  }
  return all;
}

/// Of keys, part 0, or of values, part 1.
std::size_t features(const Architecture& a, std::size_t layer, std::size_t part) {
  return predicted_features(a.decoder.layers[layer],
                            part == 0 ? PredictedPart::Keys : PredictedPart::Values);
}

/// The nodes that project them.
ForKeysAndValues<std::string> projections(const Architecture& a) {
  if (a.decoder.layers.front().latent) return {"key_rope", "kv_latent"};
  return {"key", "value"};
}

/// By base layer.
using Maps = ForKeysAndValues<std::vector<AffineMap>>;

/// The sums that all maps are solved from.
class Fit {
 public:
  Fit(const Architecture& base, const Architecture& auxiliary, const LayerMap& map)
      : served_(served_layers(map)), layers_(map.size()) {
    for (const Served& s : served_) {
      for (std::size_t part = 0; part < regressions_.size(); ++part) {
        std::vector<std::size_t> outputs;
        for (const std::size_t i : s.layers) outputs.push_back(features(base, i, part));
        regressions_[part].emplace_back(features(auxiliary, s.source, part), outputs);
      }
    }
  }

  void add(const KeyValueRows& auxiliary, const KeyValueRows& base) {
    for (std::size_t part = 0; part < base.size(); ++part) {
      for (std::size_t s = 0; s < served_.size(); ++s) {
        std::vector<ActivationRows> targets;
        for (const std::size_t i : served_[s].layers) targets.push_back(base[part][i]);
        regressions_[part][s].add(auxiliary[part][served_[s].source], targets);
      }
    }
  }

  Maps solve(double ridge) const {
    Maps maps{std::vector<AffineMap>(layers_), std::vector<AffineMap>(layers_)};
    for (std::size_t part = 0; part < maps.size(); ++part) {
      for (std::size_t s = 0; s < served_.size(); ++s) {
        std::vector<AffineMap> solved = regressions_[part][s].solve(ridge);
        for (std::size_t i = 0; i < solved.size(); ++i) {
          maps[part][served_[s].layers[i]] = std::move(solved[i]);
        }
      }
    }
    return maps;
  }

 private:
  std::vector<Served> served_;
  std::size_t layers_;
  ForKeysAndValues<std::vector<RidgeRegression>> regressions_;  ///< by served group
};

/// Sums of errors over any set of numbers.
struct ErrorSum {
  double absolute = 0;
  double squared = 0;
  double spread = 0;
  double count = 0;
  PredictionError error() const {
    KVCAST_ASSERT(count > 0);
    // Numbers that never change leave nothing to explain.
    const double r2 = spread > 0 ? 1 - squared / spread : (squared > 0 ? -INFINITY : 1);
    return {absolute / count, r2};
  }
};

/// Errors of keys or values on held-out windows.
class Errors {
 public:
  Errors(std::size_t layers, std::size_t positions) : layers_(layers), positions_(positions) {}

  /// `mean`: of the layer's numbers by feature, in the fitted windows.
  void add(std::size_t layer, const DenseMatrix& ours, const ActivationRows& exact,
           const Eigen::RowVectorXd& mean) {
    for (Eigen::Index t = 0; t < exact.rows(); ++t) {
      for (Eigen::Index f = 0; f < exact.cols(); ++f) {
        const double error = ours(t, f) - exact(t, f);
        const double distance = exact(t, f) - mean[f];
        for (ErrorSum* sum : {&layers_[layer], &positions_[static_cast<std::size_t>(t)]}) {
          sum->absolute += std::abs(error);
          sum->squared += error * error;
          sum->spread += distance * distance;
          sum->count += 1;
        }
      }
    }
  }

  std::vector<PredictionError> by_layer() const { return all(layers_); }
  std::vector<PredictionError> by_position() const { return all(positions_); }

 private:
  static std::vector<PredictionError> all(const std::vector<ErrorSum>& sums) {
    std::vector<PredictionError> errors;
    for (const ErrorSum& sum : sums) errors.push_back(sum.error());
    return errors;
  }

  std::vector<ErrorSum> layers_;
  std::vector<ErrorSum> positions_;
};

void write_predictor(const std::filesystem::path& output, const PredictorConfig& config,
                     const Maps& maps, DType dtype) {
  nlohmann::json json = predictor_json(config);
  json["dtype"] = std::string(name(dtype));
  std::vector<TensorToWrite> tensors;
  std::vector<std::span<const double>> numbers;
  for (std::size_t i = 0; i < config.map.size(); ++i) {
    for (std::size_t part = 0; part < maps.size(); ++part) {
      const char* part_name = part == 0 ? "key" : "value";
      const AffineMap& map = maps[part][i];
      const std::string prefix(predictor_prefix);
      tensors.push_back({prefix + predictor_weight(i, part_name, "weight"),
                         {static_cast<std::uint64_t>(map.weight.rows()),
                          static_cast<std::uint64_t>(map.weight.cols())},
                         {},
                         dtype});
      numbers.push_back(numbers_of(map.weight));
      tensors.push_back({prefix + predictor_weight(i, part_name, "bias"),
                         {static_cast<std::uint64_t>(map.bias.size())},
                         {},
                         dtype});
      numbers.emplace_back(map.bias.data(), static_cast<std::size_t>(map.bias.size()));
    }
  }
  CheckpointWriter writer(output, json, tensors);
  for (const std::span<const double> n : numbers) writer.write(n);
  writer.commit();
}

KvpFitReport begin_report(const Checkpoint& base, const Checkpoint& auxiliary, const KvpFit& fit) {
  const Architecture& b = base.architecture();
  const Architecture& a = auxiliary.architecture();
  check_pair(b, a);
  check_layer_map(fit.map, "layer map", b, a);
  KvpFitReport report;
  report.config = {predictor_side(b), predictor_side(a), fit.map};
  report.parameters = predictor_parameters(b, a, fit.map);
  return report;
}

/// With fewer tokens than an output has unknowns, a weight for each input and a bias, only the
/// penalty chooses among the maps that fit them all.
void check_fitted_tokens(std::size_t tokens, const Architecture& auxiliary, const LayerMap& map) {
  std::size_t widest = 0;
  for (const std::size_t source : map) {
    for (std::size_t part = 0; part < 2; ++part) {
      widest = std::max(widest, features(auxiliary, source, part));
    }
  }
  if (tokens > widest) return;
  throw Error("text", fmt::format("{} tokens to fit (without those held out)", tokens),
              fmt::format("at least {}, one per unknown of a map from {} features of {}",
                          widest + 1, widest, auxiliary.name));
}

/// The text in windows of equal length, the last of which may be shorter: `window`, or half of the
/// text where that is less, at most what both models can read. Throws Error when the text is too
/// short.
std::vector<std::span<const TokenId>> text_windows(std::span<const TokenId> text,
                                                   std::size_t window, const Architecture& base,
                                                   const Architecture& auxiliary) {
  if (text.size() < 2 * fewest_tokens) {
    throw Error(
        "text", fmt::format("{} tokens", text.size()),
        fmt::format("at least {}: half of them are fitted, half predicted", 2 * fewest_tokens));
  }
  window = std::min({window, text.size() / 2, longest_prompt(base), longest_prompt(auxiliary)});
  if (window < fewest_tokens) {
    throw Error("window", fmt::format("{} tokens", window),
                fmt::format("at least {}", fewest_tokens));
  }
  std::vector<std::span<const TokenId>> windows;
  for (std::size_t first = 0; first < text.size(); first += window) {
    const std::size_t n = std::min(window, text.size() - first);
    if (n >= fewest_tokens) windows.push_back(text.subspan(first, n));
  }
  return windows;
}

}  // namespace

std::size_t longest_prompt(const Architecture& a) {
  std::uint64_t longest = std::numeric_limits<std::uint64_t>::max();
  if (a.decoder.position_rows > 0) longest = std::min(longest, a.decoder.position_rows);
  if (const std::uint64_t most = most_rotated_positions(a.decoder); most > 0) {
    longest = std::min(longest, most);
  }
  if (a.max_position_embeddings > 0) longest = std::min(longest, a.max_position_embeddings);
  return longest;
}

KvpFitReport fit_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                           std::span<const TokenId> text, const std::filesystem::path& output,
                           const KvpFit& fit, const Progress& on_window) {
  KvpFitReport report = begin_report(base, auxiliary, fit);
  if (!(fit.ridge >= 0 && std::isfinite(fit.ridge))) {
    throw Error("--ridge", fmt::format("{}", fit.ridge), "a number of at least 0");
  }
  if (!(fit.held_out > 0 && fit.held_out <= 0.5)) {
    throw Error("--held-out", fmt::format("{}", fit.held_out), "a share above 0 and at most 0.5");
  }
  const Architecture& b = base.architecture();
  const auto windows = text_windows(text, fit.window, b, auxiliary.architecture());
  // A short last window is held out only beside whole ones, which measure every position.
  const std::size_t whole =
      windows.size() - (windows.back().size() < windows.front().size() ? 1 : 0);
  const std::size_t every =
      std::min(whole, static_cast<std::size_t>(std::llround(1 / fit.held_out)));
  const auto is_held_out = [&](std::size_t w) { return w % every == every - 1; };
  std::size_t to_fit = 0;
  for (std::size_t w = 0; w < windows.size(); ++w) to_fit += is_held_out(w) ? 0 : windows[w].size();
  check_fitted_tokens(to_fit, auxiliary.architecture(), fit.map);
  const execute::Session base_session(base, {});
  const execute::Session auxiliary_session(auxiliary, {});
  std::uint64_t done = 0;
  const auto for_windows = [&](bool held_out, const auto& action) {
    for (std::size_t w = 0; w < windows.size(); ++w) {
      if (is_held_out(w) != held_out) continue;
      if (on_window) on_window(done++, windows.size());
      action(observe_key_values(auxiliary_session, windows[w], "layers",
                                projections(auxiliary.architecture()))
                 .rows,
             observe_key_values(base_session, windows[w], "layers", projections(b)).rows);
      (held_out ? report.held_out_tokens : report.fitted_tokens) += windows[w].size();
    }
  };

  Fit sums(b, auxiliary.architecture(), fit.map);
  ForKeysAndValues<std::vector<Eigen::RowVectorXd>> means;  // by layer
  for (std::size_t part = 0; part < means.size(); ++part) {
    for (std::size_t i = 0; i < fit.map.size(); ++i) {
      means[part].push_back(Eigen::RowVectorXd::Zero(index(features(b, i, part))));
    }
  }
  for_windows(false, [&](const KeyValueRows& from, const KeyValueRows& to) {
    sums.add(from, to);
    for (std::size_t part = 0; part < means.size(); ++part) {
      for (std::size_t i = 0; i < fit.map.size(); ++i) {
        means[part][i] += to[part][i].cast<double>().colwise().sum();
      }
    }
  });
  const Maps maps = sums.solve(fit.ridge);

  std::vector<Errors> errors(2, Errors(fit.map.size(), windows.front().size()));
  for_windows(true, [&](const KeyValueRows& from, const KeyValueRows& to) {
    for (std::size_t part = 0; part < maps.size(); ++part) {
      for (std::size_t i = 0; i < fit.map.size(); ++i) {
        const AffineMap& map = maps[part][i];
        const DenseMatrix x = from[part][fit.map[i]].cast<double>();
        const DenseMatrix predicted = (x * map.weight.transpose()).rowwise() + map.bias.transpose();
        errors[part].add(i, predicted, to[part][i],
                         means[part][i] / static_cast<double>(report.fitted_tokens));
      }
    }
  });
  report.key_layers = errors[0].by_layer();
  report.value_layers = errors[1].by_layer();
  report.key_positions = errors[0].by_position();
  report.value_positions = errors[1].by_position();
  write_predictor(output, report.config, maps, fit.dtype);
  return report;
}

KvpFitReport write_identity_predictor(const Checkpoint& base, const Checkpoint& auxiliary,
                                      const std::filesystem::path& output, const KvpFit& fit) {
  const KvpFitReport report = begin_report(base, auxiliary, fit);
  Maps maps;
  for (std::size_t i = 0; i < fit.map.size(); ++i) {
    for (std::size_t part = 0; part < maps.size(); ++part) {
      const std::size_t n = features(base.architecture(), i, part);
      const std::size_t from = features(auxiliary.architecture(), fit.map[i], part);
      if (n != from) {
        throw Error(
            "--identity",
            fmt::format("{} key features in layer {} of {} and {} in layer {} of {}", n, i,
                        base.architecture().name, from, fit.map[i], auxiliary.architecture().name),
            "as many in both");
      }
      maps[part].push_back(
          {DenseMatrix::Identity(index(n), index(n)), Eigen::VectorXd::Zero(index(n))});
    }
  }
  write_predictor(output, report.config, maps, fit.dtype);
  return report;
}

}  // namespace kvcast
