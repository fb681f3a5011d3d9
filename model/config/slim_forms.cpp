#include "model/config/slim_forms.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast {
namespace {

constexpr Words<CacheForm, 5> cache_forms = {{{CacheForm::KeysAndValues, "plain"},
                                              {CacheForm::Keys, "kcache"},
                                              {CacheForm::Values, "vcache"},
                                              {CacheForm::Inputs, "xcache"},
                                              {CacheForm::FirstKeys, "hybrid"}}};

/// The form with the smallest cache, of those that need no keys of all tokens in each step.
CacheForm smallest(const Architecture& a, std::size_t layer, SlimSite site) {
  const std::uint64_t keys = kv_features(a.decoder.layers[layer].heads);
  const bool inputs = keys > a.hidden_size && !computes_keys(a, layer, site, CacheForm::Inputs);
  const CacheForm first = inputs ? CacheForm::Inputs : CacheForm::Keys;
  return why_not(a, layer, site, first).empty() ? first : CacheForm::Keys;
}

void check(const Architecture& a, const std::vector<LayerCaches>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const SlimSite site : {SlimSite::Self, SlimSite::Cross}) {
      const CacheForm kind = site == SlimSite::Self ? layers[i].self : layers[i].cross;
      const std::string reason = why_not(a, i, site, kind);
      if (reason.empty()) continue;
      throw Error(fmt::format("method slim: {} of layer {} of {} cannot use {}: {}",
                              site == SlimSite::Self ? "self-attention" : "cross-attention", i,
                              a.name, name(kind), reason));
    }
  }
}

}  // namespace

std::string_view name(CacheForm form) { return word_for(form, cache_forms); }

CacheForm parse_cache_form(std::string_view word) { return parse_word("form", word, cache_forms); }

bool keeps_some_values(const Architecture& a, std::size_t layer) {
  return kv_features(a.decoder.layers[layer].heads) < a.hidden_size;
}

std::string why_not(const Architecture& a, std::size_t layer, SlimSite site, CacheForm kind) {
  if (kind == CacheForm::KeysAndValues) return {};
  if (shares_key_values(a.decoder)) return "its layers share keys and values";
  if (a.decoder.value_norm) return "its values have a norm, so no matrix makes them of its keys";
  if (a.decoder.layers[layer].latent) return "its latents are smaller than keys or values";
  if (site == SlimSite::Self && a.decoder.projection_clip > 0) return "its projections are clipped";
  if (site == SlimSite::Self && a.decoder.attention_sinks && folds_biases(a)) {
    return "its softmax has sinks, so a bias of its keys or values cannot become one of the output";
  }
  const Heads& heads = a.decoder.layers[layer].heads;
  const std::uint64_t keys = kv_features(heads);
  if (kind == CacheForm::Inputs) {
    if (2 * keys <= a.hidden_size) {
      return fmt::format("keys and values have {} features together, the input {}", 2 * keys,
                         a.hidden_size);
    }
    return {};
  }
  if (kind == CacheForm::FirstKeys && site == SlimSite::Self) {
    return "only cross-attention shares one input among layers";
  }
  const bool wide = keys >= a.hidden_size;
  if (!wide && kind != CacheForm::Keys) {
    return fmt::format("{} features cannot hold the {} of the input", keys, a.hidden_size);
  }
  if (2 * keys <= a.hidden_size) {
    return fmt::format(
        "its keys have {} features; values can be computed from keys only if these have more than "
        "half of the input's {} features",
        keys, a.hidden_size);
  }
  return {};
}

bool computes_keys(const Architecture& a, std::size_t layer, SlimSite site, CacheForm kind) {
  if (kind != CacheForm::Values && kind != CacheForm::Inputs) return false;
  return site == SlimSite::Self && (a.decoder.layers[layer].rope || normalizes_keys(a.decoder));
}

std::vector<LayerCaches> layer_caches(const Architecture& a) {
  std::vector<LayerCaches> caches;
  for (const LayerShape& layer : a.decoder.layers) caches.push_back(layer.caches);
  return caches;
}

void check_unconverted(const Architecture& a, std::string_view where) {
  if (a.converted_for.empty()) return;
  throw Error(where, "a model converted for the method " + a.converted_for,
              "one that is not converted");
}

std::vector<LayerCaches> slim_layers(const Architecture& a, std::string_view option) {
  static const std::vector<std::string> options{"auto",    "kcache",  "vcache", "xcache",
                                                "encdec1", "encdec2", "hybrid"};
  if (std::find(options.begin(), options.end(), option) == options.end()) {
    throw Error("method slim", unknown_name("option", option, options));
  }
  const std::size_t count = a.decoder.layers.size();
  if (option == "auto" && !a.converted_for.empty()) return layer_caches(a);
  const bool for_both = option == "encdec1" || option == "encdec2" || option == "hybrid";
  if (for_both && !a.encoder_decoder) {
    throw Error("method slim: option " + std::string(option), "the decoder-only model " + a.name,
                "an encoder-decoder model; kcache, vcache, xcache or auto here");
  }
  std::vector<LayerCaches> layers(count);
  for (std::size_t i = 0; i < count; ++i) {
    LayerCaches& l = layers[i];
    if (option == "auto") {
      l.self = smallest(a, i, SlimSite::Self);
      l.cross = smallest(a, i, SlimSite::Cross);
    } else if (for_both) {
      l.self = CacheForm::Keys;
      l.cross = option == "encdec1"   ? CacheForm::Keys
                : option == "encdec2" ? CacheForm::Inputs
                                      : CacheForm::FirstKeys;
    } else {
      l.self = l.cross = parse_cache_form(option);
    }
    if (!a.encoder_decoder) l.cross = CacheForm::KeysAndValues;
  }
  check(a, layers);
  return layers;
}

bool keeps_key_bias(const Stack& stack, const LayerShape& layer) {
  return stack.key_bias && (layer.rope || normalizes_keys(stack));
}

bool folds_biases(const Architecture& a) {
  const auto& layers = a.decoder.layers;
  return a.decoder.value_bias ||
         std::any_of(layers.begin(), layers.end(),
                     [&](const LayerShape& l) { return keeps_key_bias(a.decoder, l); });
}

}  // namespace kvcast
