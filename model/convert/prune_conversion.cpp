#include "model/convert/prune_conversion.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/convert/dense_matrix.h"
#include "model/convert/stored_form.h"
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

/// A list of layers keeps those of them that are kept, by their new indices.
void prune_indices(nlohmann::json& config, const char* key, const KeptLayers& pruning) {
  if (!config.contains(key) || !config[key].is_array()) return;
  const nlohmann::json all = config[key];
  config[key] = nlohmann::json::array();
  for (std::size_t i = 0; i < pruning.kept.size(); ++i) {
    if (std::find(all.begin(), all.end(), pruning.kept[i]) != all.end()) config[key].push_back(i);
  }
}

/// Rows of the same weight of the layer that it was before.
DenseMatrix rows_before(const Checkpoint& source, const KeptLayers& pruning,
                        const std::string& weight, std::size_t first, std::size_t count) {
  const WeightName name = parse_weight_name(weight);
  const WeightReader reader = source.reader(
      name.layer ? fmt::format("layers.{}.{}{}", pruning.kept[*name.layer], name.part, name.kind)
                 : weight);
  DenseMatrix rows = read_rows(reader, first, count);
  reader.forget();
  return rows;
}

}  // namespace

nlohmann::json pruned_config(const Checkpoint& checkpoint, const Architecture& after, DType dtype) {
  nlohmann::json config = source_config(checkpoint, dtype);
  for (const char* key : {"num_hidden_layers", "num_transformer_layers", "n_layer", "num_layers"}) {
    if (config.contains(key)) config[key] = after.num_hidden_layers();
  }
  for (const char* key : {"num_query_heads", "num_kv_heads", "ffn_multipliers", "layer_types",
                          "layers_block_type", "mlp_layer_types", "no_rope_layers"}) {
    prune_list(config, key, after.pruning);
  }
  for (const char* key : {"mlp_only_layers", "moe_layers", "full_attn_idxs"})
    prune_indices(config, key, after.pruning);
  if (config.contains("first_k_dense_replace")) {
    const auto& layers = after.decoder.layers;
    config["first_k_dense_replace"] =
        std::find_if(layers.begin(), layers.end(),
                     [](const LayerShape& layer) { return layer.experts.has_value(); }) -
        layers.begin();
  }
  // Which layers have a window follows from their index in some families, unless it is written.
  const auto& whole = checkpoint.architecture().decoder.layers;
  const bool mixed = std::any_of(whole.begin(), whole.end(), [&](const LayerShape& layer) {
    return layer.sliding_window != whole.front().sliding_window;
  });
  if (mixed) {
    config["layer_types"] = nlohmann::json::array();
    for (const LayerShape& layer : after.decoder.layers) {
      config["layer_types"].push_back(layer.sliding_window > 0 ? "sliding_attention"
                                                               : "full_attention");
    }
  }
  config["kvcast_prune"] = {{"kept", after.pruning.kept}, {"of", after.pruning.of}};
  return config;
}

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

  write_in_own_form(
      checkpoint, output, pruned_config(checkpoint, report.after, conversion.dtype), after,
      conversion.dtype,
      [&](const std::string& weight, std::size_t first, std::size_t count) {
        return rows_before(checkpoint, report.after.pruning, weight, first, count);
      },
      on_tensor, report);
  return report;
}

}  // namespace kvcast
