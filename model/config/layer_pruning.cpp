#include "model/config/layer_pruning.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {

bool hands_on_choices(const Stack& stack) {
  return std::any_of(stack.layers.begin(), stack.layers.end(), [](const LayerShape& layer) {
    return layer.latent && layer.latent->indexer && layer.latent->indexer->num_heads == 0;
  });
}

Architecture prune_layers(const Architecture& a, std::span<const std::size_t> kept) {
  const std::string where = "layer pruning of " + a.name;
  const std::size_t num_layers = a.decoder.layers.size();
  if (a.encoder_decoder) throw Error(where, "an encoder-decoder model", "a decoder-only model");
  if (shares_key_values(a.decoder)) {
    throw Error(where, "a model whose layers share keys and values",
                "one whose layers all have keys and values of their own");
  }
  if (hands_on_choices(a.decoder)) {
    throw Error(where, "a model whose layers attend to the tokens that others chose",
                "one whose layers all choose their own");
  }
  if (a.decoder.altup) {
    throw Error(where, "a model with one table for the inputs of all layers",
                "one whose layers read the states of the layer below alone");
  }
  check_unconverted(a, where);
  if (!a.pruning.kept.empty()) throw Error(where, "a layer-pruned model", "a whole one");
  if (kept.empty()) throw Error(where, "no layer to keep", "at least one");

  Architecture pruned = a;
  pruned.name = fmt::format("{} ({} of {} layers)", a.name, kept.size(), num_layers);
  pruned.origin.clear();
  pruned.decoder.layers.clear();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] >= num_layers) {
      throw Error(where, fmt::format("layer {}", kept[i]),
                  fmt::format("indices from 0 to {}", num_layers - 1));
    }
    if (i > 0 && kept[i] <= kept[i - 1]) {
      throw Error(where, fmt::format("layer {} after layer {}", kept[i], kept[i - 1]),
                  "indices in ascending order, each once");
    }
    pruned.decoder.layers.push_back(a.decoder.layers[kept[i]]);
  }
  pruned.pruning = {{kept.begin(), kept.end()}, num_layers};
  return pruned;
}

std::vector<std::size_t> retained_layers(std::size_t num_hidden_layers, double keep_fraction) {
  bool (*keeps)(std::size_t) = nullptr;
  if (keep_fraction == 0.75) keeps = [](std::size_t i) { return i % 4 != 3; };
  if (keep_fraction == 0.50) keeps = [](std::size_t i) { return i % 2 == 0; };
  if (keep_fraction == 0.25) keeps = [](std::size_t i) { return i % 4 == 0; };
  if (keeps == nullptr) {
    throw Error("layer pruning", fmt::format("keep fraction {}", keep_fraction),
                "0.75, 0.50 or 0.25 (KV Prediction, Table 4)");
  }
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < num_hidden_layers; ++i) {
    if (keeps(i)) kept.push_back(i);
  }
  return kept;
}

}  // namespace kvcast
