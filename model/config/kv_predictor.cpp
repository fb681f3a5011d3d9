#include "model/config/kv_predictor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"

namespace kvcast {
namespace {

nlohmann::json side_json(const PredictorSide& side) {
  nlohmann::json json = {{"name", side.name},
                         {"vocab_size", side.vocab_size},
                         {"num_key_value_heads", side.num_key_value_heads},
                         {"head_dim", side.head_dim}};
  if (!side.kv_lora_rank.empty()) json["kv_lora_rank"] = side.kv_lora_rank;
  return json;
}

bool has_latents(const Architecture& a) { return a.decoder.layers.front().latent.has_value(); }

PredictorSide read_side(const JsonObject& c) {
  PredictorSide side;
  side.name = c.text("name");
  side.vocab_size = c.whole("vocab_size");
  side.num_key_value_heads = c.wholes("num_key_value_heads");
  side.head_dim = c.wholes("head_dim");
  if (side.num_key_value_heads.empty()) c.fail("num_key_value_heads", "an entry for each layer");
  if (side.head_dim.size() != side.num_key_value_heads.size()) {
    c.fail("head_dim", fmt::format("{} entries, one a layer", side.num_key_value_heads.size()));
  }
  if (c.has("kv_lora_rank")) {
    side.kv_lora_rank = c.wholes("kv_lora_rank");
    if (side.kv_lora_rank.size() != side.head_dim.size()) {
      c.fail("kv_lora_rank", fmt::format("{} entries, one a layer", side.head_dim.size()));
    }
  }
  return side;
}

void check_side(const PredictorSide& side, const std::string& place, std::string_view role,
                const Architecture& a) {
  const auto differ = [&](const std::string& found, const std::string& expected) {
    return Error(place,
                 fmt::format("a predictor made for the {} model {}, {}", role, side.name, found),
                 fmt::format("one for {}, {}", a.name, expected));
  };
  const PredictorSide own = predictor_side(a);
  if (side.head_dim.size() != own.head_dim.size()) {
    throw differ(fmt::format("{} layers", side.head_dim.size()),
                 fmt::format("{} layers", own.head_dim.size()));
  }
  if (side.vocab_size != own.vocab_size) {
    throw differ(fmt::format("a vocabulary of {}", side.vocab_size),
                 std::to_string(own.vocab_size));
  }
  if (side.kv_lora_rank != own.kv_lora_rank) {
    const auto latents = [](const PredictorSide& s) {
      return s.kv_lora_rank.empty() ? std::string("keys and values")
                                    : fmt::format("latents of {}", s.kv_lora_rank.front());
    };
    throw differ(latents(side), latents(own));
  }
  for (std::size_t i = 0; i < own.head_dim.size(); ++i) {
    if (side.num_key_value_heads[i] == own.num_key_value_heads[i] &&
        side.head_dim[i] == own.head_dim[i]) {
      continue;
    }
    throw differ(fmt::format("{} key-value heads of {} in layer {}", side.num_key_value_heads[i],
                             side.head_dim[i], i),
                 fmt::format("{} of {}", own.num_key_value_heads[i], own.head_dim[i]));
  }
}

void check_model(const Architecture& a, std::string_view role) {
  const std::string where = fmt::format("KV prediction, the {} model {}", role, a.name);
  if (a.encoder_decoder) throw Error(where, "an encoder-decoder model", "a decoder-only model");
  if (shares_key_values(a.decoder)) {
    throw Error(where, "a model whose layers share keys and values",
                "one whose layers all have keys and values of their own");
  }
  if (a.decoder.value_norm) {
    throw Error(where, "a model whose values have a norm",
                "one whose projections of values are cached as they are");
  }
  if (has_latents(a) && a.decoder.layers.front().latent->indexer) {
    throw Error(where, "a model whose queries choose their keys by a cache of its own",
                "one that caches latents, or keys and values, alone");
  }
  if (has_states(a.decoder)) {
    throw Error(where, "a model whose layers keep states", "one that caches keys and values");
  }
  check_unconverted(a, where);
}

}  // namespace

std::uint64_t predicted_features(const LayerShape& layer, PredictedPart part) {
  if (!layer.latent) return kv_features(layer.heads);
  return part == PredictedPart::Keys ? layer.latent->rope_dim : layer.latent->rank;
}

PredictorSide predictor_side(const Architecture& a) {
  PredictorSide side{a.name, a.vocab_size, {}, {}};
  for (const LayerShape& layer : a.decoder.layers) {
    side.num_key_value_heads.push_back(layer.latent ? 1 : layer.heads.num_key_value_heads);
    side.head_dim.push_back(layer.latent ? layer.latent->rope_dim : layer.heads.head_dim);
    if (layer.latent) side.kv_lora_rank.push_back(layer.latent->rank);
  }
  return side;
}

nlohmann::json predictor_json(const PredictorConfig& config) {
  return {{"model_type", predictor_model_type},
          {"base", side_json(config.base)},
          {"auxiliary", side_json(config.auxiliary)},
          {"layer_map", config.map}};
}

PredictorConfig read_predictor_config(const nlohmann::json& json, const std::string& place) {
  const JsonObject c(json, place);
  if (c.text("model_type") != predictor_model_type) {
    c.fail("model_type",
           fmt::format("\"{}\", as 'kvcast convert kvp' writes it", predictor_model_type));
  }
  PredictorConfig config{read_side(c.object("base")), read_side(c.object("auxiliary")), {}};
  const std::size_t layers = config.base.head_dim.size();
  const std::size_t sources = config.auxiliary.head_dim.size();
  const nlohmann::json& map = c.at("layer_map");
  const std::string expected =
      fmt::format("{} indices from 0 to {} that do not descend", layers, sources - 1);
  if (!map.is_array() || map.size() != layers) c.fail("layer_map", expected);
  for (const nlohmann::json& index : map) {
    if (!index.is_number_unsigned() || index.get<std::uint64_t>() >= sources) {
      c.fail("layer_map", expected);
    }
    config.map.push_back(index.get<std::size_t>());
    const std::size_t n = config.map.size();
    if (n > 1 && config.map[n - 1] < config.map[n - 2]) c.fail("layer_map", expected);
  }
  return config;
}

void check_predictor(const PredictorConfig& config, const std::string& place,
                     const Architecture& base, const Architecture& auxiliary) {
  check_side(config.base, place, "base", base);
  check_side(config.auxiliary, place, "auxiliary", auxiliary);
}

std::string predictor_weight(std::size_t layer, std::string_view part, std::string_view kind) {
  return fmt::format("layers.{}.{}.{}", layer, part, kind);
}

void check_pair(const Architecture& base, const Architecture& auxiliary) {
  check_model(base, "base");
  check_model(auxiliary, "auxiliary");
  if (has_latents(base) != has_latents(auxiliary)) {
    const auto caches = [](const Architecture& a) {
      return std::string(has_latents(a) ? "latents" : "keys and values");
    };
    throw Error("KV prediction, the auxiliary model " + auxiliary.name,
                "one that caches " + caches(auxiliary),
                "one that caches " + caches(base) + ", as " + base.name +
                    " does: maps lead from like to like");
  }
  if (may_share_tokens(base, auxiliary)) return;
  throw Error("KV prediction, the auxiliary model " + auxiliary.name,
              fmt::format("a vocabulary of {}", auxiliary.vocab_size),
              fmt::format("the {} of {}: both read the same tokens", base.vocab_size, base.name));
}

std::uint64_t predictor_parameters(const Architecture& base, const Architecture& auxiliary,
                                   const LayerMap& map) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < map.size(); ++i) {
    for (const PredictedPart part : {PredictedPart::Keys, PredictedPart::Values}) {
      const std::uint64_t from = predicted_features(auxiliary.decoder.layers[map[i]], part);
      sum += checked_multiply(from + 1, predicted_features(base.decoder.layers[i], part));
    }
  }
  return sum;
}

}  // namespace kvcast
