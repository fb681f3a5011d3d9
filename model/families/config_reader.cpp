#include "model/families/config_reader.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/config/slim_forms.h"
#include "model/families/config_parts.h"
#include "model/families/inert_keys.h"

namespace kvcast {
namespace {

using nlohmann::json;

json with_overrides(json config, const std::string& place,
                    const std::vector<ConfigOverride>& overrides) {
  if (!config.is_object())
    throw Error(place, "JSON that is not an object", "an object, as in config.json");
  for (const ConfigOverride& o : overrides) {
    if (o.value.empty()) throw Error("--set " + o.key, "no value", "KEY=VALUE");
    // A bare word is a string; what opens like JSON has to be JSON.
    const bool is_word = std::isalpha(static_cast<unsigned char>(o.value.front())) != 0 &&
                         o.value != "true" && o.value != "false" && o.value != "null";
    config[o.key] = is_word ? json(o.value) : parse_json(o.value, "--set " + o.key);
  }
  return config;
}

/// Moves the value under a key's other name to the key. Throws Error when the two must agree and do
/// not.
json with_first_names(json config, const JsonObject& given, const ConfigKeys& keys) {
  for (const OtherName& name : keys.other_names) {
    if (!given.has(name.other)) continue;
    json& value = config[name.key];
    if (value.is_null()) {
      value = given.at(name.other);
    } else if (!name.may_differ && value != given.at(name.other)) {
      given.fail(name.other, fmt::format("{}, as {} says", value.dump(), name.key));
    }
  }
  return config;
}

/// Keys that change what any family computes and that no family models.
void refuse_what_is_not_modelled(const JsonObject& c) {
  require_flag(c, "is_causal", true, "decoders that see later tokens");
  require_flag(c, "use_bidirectional_attention", false, "decoders that see later tokens");
}

/// "kvcast_slim": {"self": [FORM, ...], "cross": [FORM, ...]}, a form for each decoder layer, as
/// `kvcast convert slim` writes it.
void read_slim(const JsonObject& config, Architecture& a) {
  if (!config.has("kvcast_slim")) return;
  const JsonObject slim = config.object("kvcast_slim");
  a.converted_for = "slim";
  std::vector<LayerShape>& layers = a.decoder.layers;
  for (const SlimSite site : {SlimSite::Self, SlimSite::Cross}) {
    if (site == SlimSite::Cross && !a.encoder_decoder) continue;
    const char* key = site == SlimSite::Self ? "self" : "cross";
    const json& forms = slim.at(key);
    if (!forms.is_array() || forms.size() != layers.size()) {
      slim.fail(key, "a list of " + std::to_string(layers.size()) + " forms, one a layer");
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!forms[i].is_string()) slim.fail(key, "forms such as \"kcache\"");
      const CacheForm kind = parse_cache_form(forms[i].get<std::string>());
      const std::string reason = why_not(a, i, site, kind);
      if (!reason.empty()) {
        throw Error(slim.place_of(key) + ", layer " + std::to_string(i) + ", " +
                    std::string(name(kind)) + ": " + reason);
      }
      (site == SlimSite::Self ? layers[i].caches.self : layers[i].caches.cross) = kind;
    }
  }
  const auto shares_first = [](const LayerShape& l) {
    return l.caches.cross == CacheForm::FirstKeys;
  };
  if (!shares_first(layers.front()) && std::any_of(layers.begin(), layers.end(), shares_first)) {
    slim.fail("cross", "\"hybrid\" in the first layer, whose keys the others read");
  }
  slim.reject_unknown_keys();
}

/// "kvcast_prune": {"kept": [INDEX, ...], "of": LAYERS}, as `kvcast convert prune` writes it.
void read_pruning(const JsonObject& config, Architecture& a) {
  if (!config.has("kvcast_prune")) return;
  const JsonObject pruning = config.object("kvcast_prune");
  const json& kept = pruning.at("kept");
  a.pruning.of = pruning.whole("of");
  const std::string expected = std::to_string(a.num_hidden_layers()) + " ascending indices below " +
                               std::to_string(a.pruning.of);
  if (!kept.is_array() || kept.size() != a.num_hidden_layers()) pruning.fail("kept", expected);
  for (const json& index : kept) {
    const bool whole = index.is_number_unsigned() && index.get<std::uint64_t>() < a.pruning.of;
    if (!whole || (!a.pruning.kept.empty() && index.get<std::size_t>() <= a.pruning.kept.back())) {
      pruning.fail("kept", expected);
    }
    a.pruning.kept.push_back(index.get<std::size_t>());
  }
  pruning.reject_unknown_keys();
}

}  // namespace

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const Family& f : all_families())
    names.insert(names.end(), f.model_types.begin(), f.model_types.end());
  return names;
}

Architecture read_config(const json& config, const std::string& name, const std::string& place,
                         const std::vector<ConfigOverride>& overrides) {
  const json changed = with_overrides(config, place, overrides);
  const JsonObject given(changed, place);
  const std::string model_type = given.text("model_type");
  const Family* const family = find_family(model_type);
  if (family == nullptr) {
    throw Error(given.place_of("model_type") + ": " +
                unknown_name("model type", model_type, supported_model_types()).what());
  }
  json named = with_first_names(changed, given, family->keys);
  if (family->keys.default_rope != nullptr && !rope_parameters(given)) {
    named["rope_parameters"] = json::parse(family->keys.default_rope);
  }
  const JsonObject object(named, place);
  refuse_what_is_not_modelled(object);
  Architecture a = family->read != nullptr ? family->read(object) : read_decoder(object, *family);
  if (object.has("quantization_config")) {
    a.quantization = object.object("quantization_config").text_or("quant_method", "unnamed");
  }
  a.gguf_fused_qkv = family->gguf.fused_qkv;
  read_slim(object, a);
  read_pruning(object, a);
  std::set<std::string, std::less<>> known = object.asked();
  known.insert(given.asked().begin(), given.asked().end());
  for (const std::string& key : given.keys()) {
    const auto& unread = family->keys.unread;
    const bool expected = known.contains(key) || is_inert_key(key) ||
                          std::find(unread.begin(), unread.end(), key) != unread.end();
    if (!expected) a.unknown_keys.push_back(key);
  }
  for (const ConfigOverride& o : overrides) {
    if (known.contains(o.key)) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    throw Error("--set " + o.key + ": " + unknown_name("config key", o.key, names).what());
  }
  a.name = name;
  if (a.model_type.empty()) a.model_type = model_type;
  return a;
}

std::vector<std::string> config_warnings(const Architecture& a) {
  std::vector<std::string> warnings;
  for (const std::string& key : a.unknown_keys) {
    warnings.push_back(fmt::format(
        "{}: the configuration key {} is not known: if it changes the forward pass, results are wrong",
        a.name, key));
  }
  if (!a.quantization.empty()) {
    warnings.push_back(fmt::format("{}: its weights are stored as {}, forecasts take --weight-dtype",
                                   a.name, a.quantization));
  }
  return warnings;
}

}  // namespace kvcast
