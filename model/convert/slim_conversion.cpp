#include "model/convert/slim_conversion.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/convert/dense_matrix.h"
#include "model/convert/slim_weights.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

/// Inputs beyond these say nothing new about a layer.
constexpr Eigen::Index most_rows = 1024;

constexpr double largest_half = 65504;  // of fp16's finite numbers

constexpr std::array storages{DType::FP32, DType::FP16, DType::BF16};

/// The inputs [tokens, hidden_size] of every attention of the decoder.
struct AttentionInputs {
  std::vector<ActivationRows> self;
  std::vector<ActivationRows> cross;
};

AttentionInputs collect_inputs(const Checkpoint& checkpoint, execute::Request request) {
  const Architecture& a = checkpoint.architecture();
  AttentionInputs inputs{std::vector<ActivationRows>(a.decoder.layers.size()),
                         std::vector<ActivationRows>(a.decoder.layers.size())};
  request.on_node = [&](const Graph& graph, const execute::NodeRun& run,
                        std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[run.node];
    const bool self = node.label == "query" && node.phase != "encoder";
    if (!self && node.label != "cross_key") return;
    auto& rows = (self ? inputs.self : inputs.cross)[static_cast<std::size_t>(node.layer)];
    const execute::Operand& x = run.call->inputs[0];
    const Eigen::Index hidden = index(x.shape.back());
    const Eigen::Index n = std::min(index(x.rows()), most_rows - rows.rows());
    rows.conservativeResize(rows.rows() + n, hidden);
    rows.bottomRows(n) = Eigen::Map<const ActivationRows>(x.data, n, hidden);
  };
  execute::SessionOptions options;
  options.decoder_tokens = request.tokens.front().size();
  const execute::Session session(checkpoint, options);
  session.run(request);
  return inputs;
}

std::string layer_name(const Architecture& a, std::size_t layer) {
  return (a.encoder_decoder ? "decoder.layers." : "layers.") + std::to_string(layer);
}

std::string part_prefix(SlimSite site) { return site == SlimSite::Cross ? "cross_" : ""; }

/// The weights of the source, and what is computed of them.
class Weights {
 public:
  explicit Weights(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), a_(checkpoint.architecture()) {}

  DenseMatrix read(const std::string& name) const { return read_weight(checkpoint_.reader(name)); }
  DenseMatrix projection(std::size_t layer, SlimSite site, const std::string& part) const {
    return read(layer_name(a_, layer) + "." + part_prefix(site) + part + ".weight");
  }
  /// Zeros where the model has none.
  Eigen::VectorXd bias(std::size_t layer, SlimSite site, const std::string& part, bool present,
                       Eigen::Index size) const {
    if (!present) return Eigen::VectorXd::Zero(size);
    return read(layer_name(a_, layer) + "." + part_prefix(site) + part + ".bias");
  }

  /// What a layer keeps in this form, as a projection of its input.
  DenseMatrix kept(std::size_t layer, SlimSite site, CacheForm kind) const {
    if (kind == CacheForm::Values) return projection(layer, site, "value");
    if (kind == CacheForm::FirstKeys) return projection(0, site, "key");
    const DenseMatrix keys = projection(layer, site, "key");
    if (!keeps_some_values(a_, layer)) return keys;
    const DenseMatrix values = rest(layer, site);
    DenseMatrix both(keys.rows() + values.rows(), keys.cols());
    both << keys, values;
    return both;
  }
  /// The first values, which are kept beside the keys of grouped heads.
  DenseMatrix rest(std::size_t layer, SlimSite site) const {
    const std::size_t kept = a_.hidden_size - kv_features(a_.decoder.layers[layer].heads);
    return projection(layer, site, "value").topRows(index(kept));
  }

 private:
  const Checkpoint& checkpoint_;
  const Architecture& a_;
};

/// Tries the forms of one attention.
class Measurement {
 public:
  Measurement(const Architecture& a, const Weights& weights, const ActivationRows& inputs,
              SlimLayerReport& report)
      : a_(a), weights_(weights), inputs_(inputs), report_(report) {}

  void measure(CacheForm kind) {
    const SlimSite site = report_.site;
    if (!why_not(a_, report_.layer, site, kind).empty()) return;
    const DenseMatrix keys = weights_.projection(report_.layer, site, "key");
    const DenseMatrix values = weights_.projection(report_.layer, site, "value");
    if (kind == CacheForm::Inputs) {
      for (const DType storage : storages) {
        report_.errors[kind][storage] = std::max(input_cache_error(inputs_, keys, storage),
                                                 input_cache_error(inputs_, values, storage));
      }
      return;
    }
    const DenseMatrix kept = weights_.kept(report_.layer, site, kind);
    const ProjectionInverse inverse(kept);
    if (kind == CacheForm::Keys) report_.key_condition = inverse.condition();
    if (kind == CacheForm::Values) report_.value_condition = inverse.condition();
    if (kind != CacheForm::Values) record(kind, kept, inverse, values);
    if (kind != CacheForm::Keys) record(kind, kept, inverse, keys);
  }

 private:
  void record(CacheForm kind, const DenseMatrix& kept, const ProjectionInverse& inverse,
              const DenseMatrix& other) {
    const DenseMatrix map = inverse.map_to(other);
    double& largest = report_.largest_weight[kind];
    largest = std::max(largest, map.cwiseAbs().maxCoeff());
    for (const DType storage : storages) {
      double& error = report_.errors[kind][storage];
      error = std::max(error, reconstruction_error(inputs_, kept, map, other, storage));
    }
  }

  const Architecture& a_;
  const Weights& weights_;
  const ActivationRows& inputs_;
  SlimLayerReport& report_;
};

/// The forms that an option asks for, the one to be taken first before the others.
std::vector<CacheForm> wanted_forms(const Architecture& a, std::size_t layer, SlimSite site,
                                    const std::string& option) {
  if (option != "auto") {
    const LayerCaches forms = slim_layers(a, option)[layer];
    return {site == SlimSite::Self ? forms.self : forms.cross};
  }
  std::vector<CacheForm> forms{CacheForm::Keys, CacheForm::Values};
  if (computes_keys(a, layer, site, CacheForm::Inputs)) return forms;  // only if asked for
  const bool wide = kv_features(a.decoder.layers[layer].heads) > a.hidden_size;
  forms.insert(wide ? forms.begin() : forms.end(), CacheForm::Inputs);
  return forms;
}

std::string limit_text(const SlimLayerReport& r, CacheForm kind, DType storage, double error,
                       double max_error) {
  std::string condition;
  const std::optional<double>& number =
      kind == CacheForm::Values ? r.value_condition : r.key_condition;
  if (number && kind != CacheForm::Inputs) condition = fmt::format(", condition {:.2g}", *number);
  return fmt::format("{}: error {:.2g} in {}{}, above {:.2g}", name(kind), error, name(storage),
                     condition, max_error);
}

/// What a form costs that keys alone would not.
std::string price(const Architecture& a, std::size_t layer, SlimSite site, CacheForm kind) {
  if (!computes_keys(a, layer, site, kind)) return {};
  return fmt::format("{}: every step computes the keys of all tokens anew", name(kind));
}

void choose(const Architecture& a, const SlimConversion& conversion, SlimLayerReport& r) {
  std::vector<std::string> reasons;
  std::optional<Error> beyond_range;
  const auto join = [&] { return fmt::format("{}", fmt::join(reasons, "; ")); };
  for (const CacheForm kind : wanted_forms(a, r.layer, r.site, conversion.option)) {
    const std::string shape = why_not(a, r.layer, r.site, kind);
    if (!shape.empty()) {
      reasons.push_back(fmt::format("{}: {}", name(kind), shape));
      continue;
    }
    const auto largest = r.largest_weight.find(kind);
    if (conversion.dtype == DType::FP16 && largest != r.largest_weight.end() &&
        std::isfinite(largest->second) && largest->second > largest_half) {
      const std::string found = fmt::format("weights of up to {:.3g}", largest->second);
      const Error refusal(fmt::format("layer {}, {} in fp16", r.layer, name(kind)), found,
                          fmt::format("at most {}; --dtype bf16 or fp32", largest_half));
      if (conversion.option != "auto") throw refusal;
      // Another form may fit. If not, and the range is all that is wrong with this one, the layer
      // is not one to be kept plain.
      if (!beyond_range && r.errors.at(kind).at(DType::FP32) <= conversion.max_error) {
        beyond_range = refusal;
      }
      reasons.push_back(fmt::format("{}: {}, beyond fp16's {}", name(kind), found, largest_half));
      continue;
    }
    const DType storage = conversion.dtype == DType::FP64 ? DType::FP32 : conversion.dtype;
    const double error = r.errors.at(kind).at(storage);
    if (error <= conversion.max_error) {
      r.chosen = kind;
      const std::string cost = price(a, r.layer, r.site, kind);
      if (!cost.empty()) reasons.push_back(cost);
      r.reason = join();
      return;
    }
    reasons.push_back(limit_text(r, kind, storage, error, conversion.max_error));
  }
  if (beyond_range) throw Error(*beyond_range);
  r.reason = join();
}

/// The numbers of the weights that the converted model reads.
class Writer {
 public:
  Writer(const Architecture& a, const Weights& weights, const std::vector<LayerCaches>& layers)
      : a_(a), weights_(weights), layers_(layers) {}

  DenseMatrix numbers(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const WeightName parsed = parse_weight_name(name);
    const bool decoder = parsed.layer && parsed.stack != "encoder.";
    if (!decoder) return weights_.read(name);
    const std::size_t i = *parsed.layer;
    const SlimSite site = parsed.part.starts_with("cross_") ? SlimSite::Cross : SlimSite::Self;
    const CacheForm kind = site == SlimSite::Self ? layers_[i].self : layers_[i].cross;
    const std::string part = parsed.part.substr(part_prefix(site).size());
    const bool output = parsed.part == "attention_output" || parsed.part == "cross_output";
    if (output && parsed.kind == ".bias") return output_bias(i, site, kind, index(shape[0]));
    if (part == "rest") return weights_.rest(i, site);
    if (part == "key_value" || part == "rest_value") {
      const DenseMatrix map = inverse(i, site, kind).map_to(weights_.projection(i, site, "value"));
      const Eigen::Index width = index(shape[1]);
      return map.middleCols(part == "key_value" ? 0 : map.cols() - width, width);
    }
    if (part == "value_key") {
      return inverse(i, site, kind).map_to(weights_.projection(i, site, "key"));
    }
    const bool projects = part == "key" || part == "value";
    if (kind == CacheForm::FirstKeys && i > 0 && projects) {
      return inverse(i, site, kind).map_to(weights_.projection(i, site, part));
    }
    return weights_.read(name);
  }

 private:
  /// The last one is kept: the same is asked for more than once in a row.
  const ProjectionInverse& inverse(std::size_t layer, SlimSite site, CacheForm kind) {
    const std::size_t owner = kind == CacheForm::FirstKeys ? 0 : layer;
    const auto wanted = std::tuple(owner, site, kind);
    if (!inverse_ || inverse_of_ != wanted) {
      inverse_.emplace(weights_.kept(owner, site, kind));
      inverse_of_ = wanted;
    }
    return *inverse_;
  }

  /// c + W_O·(b_V - W_KV·b_K): the rows of a softmax sum to 1, so what is the same in all values
  /// comes out of the attention as it is. Keys are kept with their bias where positions rotate it.
  Eigen::VectorXd output_bias(std::size_t i, SlimSite site, CacheForm kind, Eigen::Index size) {
    const Heads& heads = a_.decoder.layers[i].heads;
    const Eigen::Index features = index(kv_features(heads));
    const bool self = site == SlimSite::Self;
    const std::string part = self ? "attention_output" : "output";
    Eigen::VectorXd bias = weights_.bias(i, site, part, a_.decoder.attention_output_bias, size);
    if (kind == CacheForm::KeysAndValues) return bias;
    Eigen::VectorXd same = weights_.bias(i, site, "value", a_.decoder.value_bias, features);
    if (self && kind == CacheForm::Keys && keeps_key_bias(a_.decoder, a_.decoder.layers[i])) {
      const DenseMatrix map = inverse(i, site, kind).map_to(weights_.projection(i, site, "value"));
      same -= map.leftCols(features) * weights_.bias(i, site, "key", true, features);
    }
    const DenseMatrix output = weights_.projection(i, site, part);
    Eigen::VectorXd by_query_head(output.cols());
    const Eigen::Index queries_per_key =
        index(heads.num_attention_heads / heads.num_key_value_heads);
    const Eigen::Index head_dim = index(heads.head_dim);
    for (Eigen::Index c = 0; c < output.cols(); ++c) {
      by_query_head[c] = same[c / head_dim / queries_per_key * head_dim + c % head_dim];
    }
    return bias + output * by_query_head;
  }

  const Architecture& a_;
  const Weights& weights_;
  const std::vector<LayerCaches>& layers_;
  std::optional<ProjectionInverse> inverse_;
  std::tuple<std::size_t, SlimSite, CacheForm> inverse_of_;
};

nlohmann::json slim_json(const std::vector<LayerCaches>& layers, bool cross) {
  nlohmann::json self_forms = nlohmann::json::array();
  nlohmann::json cross_forms = nlohmann::json::array();
  for (const LayerCaches& l : layers) {
    self_forms.push_back(name(l.self));
    cross_forms.push_back(name(l.cross));
  }
  nlohmann::json j{{"self", self_forms}};
  if (cross) j["cross"] = cross_forms;
  return j;
}

void check_request(const Checkpoint& checkpoint, const SlimConversion& conversion) {
  const Architecture& a = checkpoint.architecture();
  const std::string place = checkpoint.path().string();
  check_unconverted(a, place);
  if (shares_key_values(a.decoder)) {
    throw Error(place, "a checkpoint whose layers share keys and values",
                "one whose layers have their own");
  }
  if (has_states(a.decoder)) {
    throw Error(place, "a checkpoint whose layers keep states",
                "one whose layers all cache keys and values");
  }
  const std::string dtype(name(conversion.dtype));
  if (dtype != "fp64" && dtype != "fp32" && dtype != "fp16" && dtype != "bf16") {
    throw Error("--dtype", dtype, "fp64, fp32, fp16 or bf16");
  }
  if (!(conversion.max_error > 0)) {
    throw Error("--max-error", fmt::format("{}", conversion.max_error), "a number above 0");
  }
  // For its errors: an option by name must fit all layers.
  if (conversion.option != "auto") slim_layers(a, conversion.option);
  const execute::Request& r = conversion.calibration;
  if (a.num_mel_bins > 0) return;
  std::size_t tokens = 0;
  for (const auto& prompt : a.encoder_decoder ? r.encoder_tokens : r.tokens) {
    tokens += prompt.size();
  }
  if (tokens < fewest_calibration_tokens) {
    throw Error("calibration prompt", fmt::format("{} tokens", tokens),
                fmt::format("at least {}", fewest_calibration_tokens));
  }
}

/// Some wanted form fits the shapes of some layer.
void check_shapes(const Architecture& a, const std::string& option) {
  std::string reason;
  for (std::size_t i = 0; i < a.decoder.layers.size(); ++i) {
    for (const SlimSite site : {SlimSite::Self, SlimSite::Cross}) {
      if (site == SlimSite::Cross && !a.encoder_decoder) continue;
      for (const CacheForm kind : wanted_forms(a, i, site, option)) {
        const std::string why = why_not(a, i, site, kind);
        if (why.empty()) return;
        if (reason.empty()) reason = why;
      }
    }
  }
  throw Error(a.name + " has no layer that slim attention can convert: " + reason);
}

}  // namespace

std::size_t layers_under(const SlimReport& report, SlimSite site, CacheForm kind, DType storage,
                         double error) {
  return static_cast<std::size_t>(
      std::count_if(report.layers.begin(), report.layers.end(), [&](const SlimLayerReport& l) {
        const auto found = l.errors.find(kind);
        return l.site == site && found != l.errors.end() && found->second.at(storage) < error;
      }));
}

SlimReport convert_to_slim(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           const SlimConversion& conversion, const Progress& on_step) {
  check_request(checkpoint, conversion);
  SlimReport report;
  report.before = checkpoint.architecture();
  const Architecture& a = report.before;
  check_shapes(a, conversion.option);
  const std::size_t num_layers = a.decoder.layers.size();
  const std::size_t sites = a.encoder_decoder ? 2 : 1;

  const AttentionInputs inputs = collect_inputs(checkpoint, conversion.calibration);
  report.calibration_rows = static_cast<std::size_t>(inputs.self.front().rows());
  if (report.calibration_rows < fewest_calibration_tokens) {
    throw Error("calibration of " + a.name,
                fmt::format("{} tokens of the decoder", report.calibration_rows),
                fmt::format("at least {}", fewest_calibration_tokens));
  }
  const Weights weights(checkpoint);
  std::vector<LayerCaches> layers(num_layers);
  for (std::size_t i = 0; i < num_layers; ++i) {
    for (const SlimSite site : {SlimSite::Self, SlimSite::Cross}) {
      if (site == SlimSite::Cross && sites == 1) continue;
      if (on_step) on_step(report.layers.size(), 2 * sites * num_layers);
      SlimLayerReport& layer = report.layers.emplace_back();
      layer.layer = i;
      layer.site = site;
      const ActivationRows& rows = (site == SlimSite::Self ? inputs.self : inputs.cross)[i];
      Measurement measurement(a, weights, rows, layer);
      for (const CacheForm kind : {CacheForm::Keys, CacheForm::Values}) measurement.measure(kind);
      const bool costly = computes_keys(a, i, site, CacheForm::Inputs);
      if (!costly || conversion.option == "xcache") measurement.measure(CacheForm::Inputs);
      if (conversion.option == "hybrid" && site == SlimSite::Cross) {
        measurement.measure(CacheForm::FirstKeys);
      }
      choose(a, conversion, layer);
      (site == SlimSite::Self ? layers[i].self : layers[i].cross) = layer.chosen;
    }
  }
  // The first layer's keys serve nobody unless the first layer keeps them.
  if (conversion.option == "hybrid" && layers[0].cross != CacheForm::FirstKeys) {
    for (SlimLayerReport& r : report.layers) {
      if (r.site != SlimSite::Cross || r.chosen != CacheForm::FirstKeys) continue;
      layers[r.layer].cross = r.chosen = CacheForm::KeysAndValues;
      r.reason = "the first layer's keys cannot be turned back into its input";
    }
  }

  const bool any = std::any_of(layers.begin(), layers.end(), [](const LayerCaches& l) {
    return l.self != CacheForm::KeysAndValues || l.cross != CacheForm::KeysAndValues;
  });
  if (!any) {
    throw Error(a.name + ": no layer can be converted within --max-error " +
                fmt::format("{:.2g}", conversion.max_error) +
                "; layer 0: " + report.layers.front().reason);
  }
  Architecture after = a;
  after.converted_for = "slim";
  for (std::size_t i = 0; i < num_layers; ++i) after.decoder.layers[i].caches = layers[i];
  report.after = after;
  Lowering lowering;
  lowering.weights = lowering.activations = lowering.cache = conversion.dtype;
  const Recording before_recording = record(a, {}, lowering);
  const Recording after_recording = record(after, {{"slim", {}}}, lowering);
  report.compare(before_recording, after_recording);
  if (sites == 2) {
    report.cross_cache_ratio =
        static_cast<double>(after_recording.cross_cache_bytes_per_token.at({})) /
        static_cast<double>(before_recording.cross_cache_bytes_per_token.at({}));
  }

  nlohmann::json config = source_config(checkpoint, conversion.dtype);
  config["kvcast_slim"] = slim_json(layers, sites == 2);
  std::vector<TensorToWrite> plans;
  for (const auto& [name, info] : weights_of(after_recording)) {
    plans.push_back(tensor_to_write(name, info, conversion.dtype));
  }
  Writer weights_after(a, weights, layers);
  write_converted(
      checkpoint, output, config, plans,
      [&](std::size_t i, CheckpointWriter& writer) {
        writer.write(numbers_of(weights_after.numbers(plans[i].name, plans[i].shape)));
      },
      on_step, report);
  return report;
}

}  // namespace kvcast
