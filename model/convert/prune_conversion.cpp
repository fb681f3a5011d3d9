#include "model/convert/prune_conversion.h"

#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/convert/dense_matrix.h"
#include "model/families/config_reader.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {
namespace {

template <typename Number>
std::optional<Number> parse_all(std::string_view text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return {};
  return number;
}

/// A list with an entry for each layer becomes that of the kept ones.
void prune_list(nlohmann::json& config, const char* key, const KeptLayers& pruning) {
  if (!config.contains(key)) return;
  const nlohmann::json all = config[key];
  if (!all.is_array() || all.size() != pruning.of) return;
  config[key] = nlohmann::json::array();
  for (const std::size_t i : pruning.kept) config[key].push_back(all[i]);
}

nlohmann::json config_of(const Checkpoint& checkpoint, const Architecture& after, DType dtype) {
  nlohmann::json config = source_config(checkpoint, dtype);
  for (const char* key : {"num_hidden_layers", "num_transformer_layers", "n_layer", "num_layers"}) {
    if (config.contains(key)) config[key] = after.num_hidden_layers();
  }
  for (const char* key : {"num_query_heads", "num_kv_heads", "ffn_multipliers", "layer_types"}) {
    prune_list(config, key, after.pruning);
  }
  // Which layers have a window follows from their index in these families, unless it is written.
  if (after.model_type == "gemma2" || after.model_type == "qwen2") {
    config["layer_types"] = nlohmann::json::array();
    for (const LayerShape& layer : after.decoder.layers) {
      config["layer_types"].push_back(layer.sliding_window > 0 ? "sliding_attention"
                                                               : "full_attention");
    }
  }
  config["kvcast_prune"] = {{"kept", after.pruning.kept}, {"of", after.pruning.of}};
  return config;
}

/// Where rows of a stored tensor come from.
struct Part {
  std::string weight;               ///< of the pruned model, "layers.3.query.weight"
  std::vector<std::uint64_t> rows;  ///< of the stored tensor; empty: all of it
};

/// A tensor of the file and what it is made of.
struct StoredPlan {
  TensorToWrite tensor;
  std::vector<Part> parts;
  bool transposed = false;
};

std::vector<StoredPlan> plan_tensors(const Architecture& a, const Recording& recording,
                                     DType dtype) {
  std::map<std::string, StoredPlan> plans;
  for (const auto& [name, info] : weights_of(recording)) {
    const WeightSource source = huggingface_weight(a, name);
    if (source.pieces > 0 || source.blocks > 0 || source.offset != 0) {
      throw Error("the layers of " + a.name, "weights of a " + a.model_type + " model, such as " +
                  source.names.front(), "a model without experts or norms stored with an offset");
    }
    StoredPlan& plan = plans[source.names.front()];
    const TensorToWrite tensor = tensor_to_write(source.names.front(), info, dtype);
    if (plan.parts.empty()) {
      plan.tensor = tensor;
    } else {
      plan.tensor.shape[0] += tensor.shape[0];  // a part beside the others
    }
    plan.transposed = source.transposed;
    plan.parts.push_back({name, source.rows});
  }
  std::vector<StoredPlan> list;
  for (auto& [name, plan] : plans) {
    if (plan.transposed) std::swap(plan.tensor.shape[0], plan.tensor.shape[1]);
    list.push_back(std::move(plan));
  }
  return list;
}

/// The same weight of the layer that it was before.
WeightReader reader_of(const Checkpoint& source, const KeptLayers& pruning,
                       const std::string& weight) {
  const WeightName name = parse_weight_name(weight);
  if (!name.layer) return source.reader(weight);
  return source.reader(
      fmt::format("layers.{}.{}{}", pruning.kept[*name.layer], name.part, name.kind));
}

void write_tensor(const Checkpoint& source, const KeptLayers& pruning, const StoredPlan& plan,
                  CheckpointWriter& writer) {
  if (plan.parts.size() == 1 && !plan.transposed) {
    const WeightReader reader = reader_of(source, pruning, plan.parts.front().weight);
    for_pieces(reader, reader.shape().front(),
               [&](const DenseMatrix& rows) { writer.write(numbers_of(rows)); });
    return reader.forget();
  }
  DenseMatrix whole;
  for (const Part& part : plan.parts) {
    const DenseMatrix rows = read_weight(reader_of(source, pruning, part.weight));
    if (whole.size() == 0) {
      whole.setZero(index(plan.tensor.shape[plan.transposed ? 1 : 0]), rows.cols());
    }
    for (Eigen::Index i = 0; i < rows.rows(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      whole.row(part.rows.empty() ? i : index(part.rows[at])) = rows.row(i);
    }
  }
  if (plan.transposed) whole.transposeInPlace();
  writer.write(numbers_of(whole));
}

}  // namespace

std::vector<std::size_t> parse_kept_layers(std::string_view text, std::size_t num_hidden_layers) {
  const bool list = text.find('.') == std::string_view::npos;
  const auto fraction = parse_all<double>(text);
  if (!list && fraction) return retained_layers(num_hidden_layers, *fraction);
  std::vector<std::size_t> kept;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto index = parse_all<std::size_t>(text.substr(begin, end - begin));
    if (!index) {
      throw Error("layers to keep", "'" + std::string(text) + "'",
                  "0.75, 0.5 or 0.25, or indices such as 0,2,5");
    }
    kept.push_back(*index);
    begin = end + 1;
  }
  return kept;
}

ConversionReport convert_to_pruned(const Checkpoint& checkpoint,
                                   const std::filesystem::path& output,
                                   const PruneConversion& conversion, const Progress& on_tensor) {
  ConversionReport report;
  report.before = checkpoint.architecture();
  report.after = prune_layers(report.before, conversion.kept);
  const Recording before = record(report.before, {}, {});
  const Recording after = record(report.after, {}, {});
  check_source(checkpoint, before);
  report.compare(before, after);

  const nlohmann::json config = config_of(checkpoint, report.after, conversion.dtype);
  const Architecture written = read_config(config, report.after.name, output.string());
  KVCAST_ASSERT(written.decoder.layers == report.after.decoder.layers);
  const std::vector<StoredPlan> plans = plan_tensors(report.after, after, conversion.dtype);
  std::vector<TensorToWrite> tensors;
  for (const StoredPlan& plan : plans) tensors.push_back(plan.tensor);
  write_converted(
      checkpoint, output, config, tensors,
      [&](std::size_t i, CheckpointWriter& writer) {
        write_tensor(checkpoint, report.after.pruning, plans[i], writer);
      },
      on_tensor, report);
  return report;
}

}  // namespace kvcast
