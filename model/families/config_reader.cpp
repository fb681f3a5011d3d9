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
#include "model/families/wrappers.h"

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

/// `dtype`, which transformers 4 writes as `torch_dtype`: the type that the weights are published
/// in. Others than these are those of single weights, which `quantization_config` says.
std::optional<DType> published_dtype(const json& config) {
  for (const char* const key : {"dtype", "torch_dtype"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    if (const auto dtype = pytorch_dtype(found->get<std::string>())) return dtype;
  }
  return {};
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

/// Of formats with one element type for all products: "int4_g64,embedding=fp16,...".
std::string with_kept(const std::string& type) {
  return type + ",embedding=fp16,head=fp16,norm=fp16,bias=fp16,router=fp16,other=fp16";
}

/// A whole number, or 0 for any other: GPTQ's group_size -1 is one group for each column.
std::uint64_t whole_or_none(const JsonObject& q, const char* key, std::uint64_t fallback) {
  if (!q.has(key)) return fallback;
  const json& value = q.at(key);
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

std::string integer_types(std::uint64_t bits, std::uint64_t group) {
  if (bits == 8) return with_kept("int8");
  if (bits != 4 || (group != 32 && group != 64 && group != 128)) return "";
  return with_kept("int4_g" + std::to_string(group));
}

/// "fp8-block", or "" for what kvcast cannot say.
std::string fp8_types(const JsonObject& q) {
  if (!q.has("weight_block_size")) return "fp8-channel";
  return q.wholes("weight_block_size") == std::vector<std::uint64_t>{128, 128} ? "fp8-block" : "";
}

/// "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", ...}}} of
/// compressed-tensors.
std::string compressed_types(const JsonObject& q) {
  if (!q.has("config_groups")) return "";
  const JsonObject groups = q.object("config_groups");
  if (groups.keys().size() != 1) return "";
  const JsonObject group = groups.object(groups.keys().front());
  if (!group.has("weights")) return "";
  const JsonObject weights = group.object("weights");
  const std::uint64_t bits = whole_or_none(weights, "num_bits", 8);
  if (weights.text_or("type", "int") == "int") {
    // Symmetric groups have no zeros: 32 of them are a block of q4_0.
    const std::uint64_t size = whole_or_none(weights, "group_size", 128);
    const bool zeros = !weights.flag_or("symmetric", true);
    return bits == 4 && size == 32 && !zeros ? with_kept("q4_0") : integer_types(bits, size);
  }
  if (bits == 4) return "nvfp4";
  return weights.text_or("strategy", "channel") == "block" ? "fp8-block" : "fp8-channel";
}

/// Layers that stay in 16 bits, as "attention=bf16"; a list names them by module, by pattern or
/// each by itself, and what is not a whole class is left out.
std::string kept_classes(const JsonObject& q) {
  std::set<std::string> kept;
  for (const char* const key : {"modules_to_not_convert", "ignore", "exclude_modules"}) {
    if (!q.has(key)) continue;
    for (const std::string& module : q.texts(key)) {
      if (module.find_first_of("0123456789") != std::string::npos) continue;
      for (const auto& [word, of] :
           {std::pair{"self_attn", "attention"}, {"shared_expert", "shared_expert"}}) {
        const std::size_t at = module.find(word);
        // "self_attn", "self_attn*" and "self_attn.*" name all of it, "self_attn.q_proj" does not.
        if (at == std::string::npos || module.find("_proj") != std::string::npos) continue;
        kept.insert(of);
      }
    }
  }
  std::string types;
  for (const std::string& of : kept) types += "," + of + "=bf16";
  return types;
}

/// The weights' types by a quantization_config, as parse_weight_types takes them; "" for what
/// kvcast does not know.
std::string stored_types(const std::string& method, const JsonObject& q) {
  std::string types;
  if (method == "fp8" || method == "fbgemm_fp8") types = fp8_types(q);
  if (method == "mxfp4") return method;
  if (method == "awq" || method == "gptq") {
    const std::uint64_t group =
        whole_or_none(q, q.has("q_group_size") ? "q_group_size" : "group_size", 128);
    const std::uint64_t bits = whole_or_none(q, q.has("w_bit") ? "w_bit" : "bits", 4);
    types = bits == 4 && group == 128 ? method : integer_types(bits, group);
  }
  if (method == "compressed-tensors") types = compressed_types(q);
  if (method == "modelopt") {
    const std::string algorithm = q.text_or("quant_algo", "");
    if (algorithm == "FP8") types = "fp8-channel";
    if (algorithm == "NVFP4") types = "nvfp4";
  }
  return types.empty() ? "" : types + kept_classes(q);
}

/// What products read activations in by a quantization_config. Engines quantise them for the fp8 of
/// DeepSeek and FBGEMM by each token, with or without a word about it.
std::optional<DType> stored_operands(const std::string& method, const JsonObject& q) {
  if (method == "fp8" || method == "fbgemm_fp8") return DType::FP8;
  if (method == "modelopt" && q.text_or("quant_algo", "") == "FP8") return DType::FP8;
  if (method != "compressed-tensors" || !q.has("config_groups")) return {};
  const JsonObject groups = q.object("config_groups");
  if (groups.keys().size() != 1) return {};
  const JsonObject group = groups.object(groups.keys().front());
  if (!group.has("input_activations")) return {};
  const JsonObject activations = group.object("input_activations");
  if (whole_or_none(activations, "num_bits", 8) != 8) return {};
  return activations.text_or("type", "int") == "int" ? DType::INT8 : DType::FP8;
}

/// Keys of rotations that no rule has, or the family's has not; some have an entry for each layer
/// type.
void add_unknown_rope_keys(const json& rope, const std::string& place, bool rotates_share,
                           Architecture& a) {
  if (!rope.is_object()) return;
  for (const auto& [key, value] : rope.items()) {
    const std::string own = place + "." + key;
    if (value.is_object()) {
      add_unknown_rope_keys(value, own, rotates_share, a);
    } else if (key == "factors" && rope.contains("rope_type") &&
               rope["rope_type"] == "frequency_factors") {
      continue;  // gguf_config()'s
    } else if (!is_rope_key(key) || (key == "partial_rotary_factor" && !rotates_share &&
                                     value != 1 && !value.is_null())) {
      a.unknown_keys.push_back(own);
    }
  }
}

}  // namespace

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const Family& f : all_families())
    names.insert(names.end(), f.model_types.begin(), f.model_types.end());
  const std::vector<std::string> wrappers = wrapper_model_types();
  names.insert(names.end(), wrappers.begin(), wrappers.end());
  return names;
}

Architecture read_config(const json& config, const std::string& name, const std::string& file,
                         const std::vector<ConfigOverride>& overrides) {
  std::string place = file;
  constexpr std::string_view with = " with --set ";
  if (!overrides.empty() && file.find(with) == file.npos) {
    place += with;
    for (const ConfigOverride& o : overrides) {
      place += fmt::format("{}{}={}", &o == &overrides.front() ? "" : " --set ", o.key, o.value);
    }
  }
  if (const std::optional<TextConfig> text = text_config(config, place)) {
    Architecture a = read_config(text->config, name, text->place, overrides);
    a.wrapper = config.at("model_type").get<std::string>();
    a.unknown_keys.insert(a.unknown_keys.end(), text->unknown_keys.begin(),
                          text->unknown_keys.end());
    if (!a.published_dtype) a.published_dtype = published_dtype(config);
    return a;
  }
  const json changed = with_overrides(config, file, overrides);
  const JsonObject given(changed, place);
  const std::string model_type = given.text("model_type");
  const Family* const family = find_family(model_type);
  if (family == nullptr) {
    throw Error(given.place_of("model_type"),
                unknown_name("model type", model_type, supported_model_types()));
  }
  json named = with_first_names(changed, given, family->keys);
  if (family->keys.default_rope != nullptr && !rope_parameters(given)) {
    named["rope_parameters"] = json::parse(family->keys.default_rope);
  }
  const JsonObject object(named, place);
  refuse_what_is_not_modelled(object);
  Architecture a = family->read != nullptr ? family->read(object) : read_decoder(object, *family);
  if (object.has("quantization_config")) {
    const JsonObject quantization = object.object("quantization_config");
    a.quantization = quantization.text_or("quant_method", "unnamed");
    if (const std::string types = stored_types(a.quantization, quantization); !types.empty()) {
      a.stored_weights = parse_weight_types(types);
      a.stored_operands = stored_operands(a.quantization, quantization);
    }
  }
  a.published_dtype = published_dtype(changed);
  a.gguf_fused_qkv = family->gguf.fused_qkv;
  read_slim(object, a);
  read_pruning(object, a);
  std::set<std::string, std::less<>> known = object.asked();
  known.insert(given.asked().begin(), given.asked().end());
  for (const std::string& key : given.keys()) {
    if (!known.contains(key) && !is_inert_key(key)) a.unknown_keys.push_back(key);
  }
  const bool rotates_share = family->keys.rotary_share != nullptr;
  for (const char* const key : {"rope_parameters", "rope_scaling"}) {
    if (changed.contains(key)) add_unknown_rope_keys(changed[key], key, rotates_share, a);
  }
  const auto& unread = family->keys.unread;
  std::erase_if(a.unknown_keys, [&](const std::string& key) {
    return std::find(unread.begin(), unread.end(), key) != unread.end();
  });
  for (const ConfigOverride& o : overrides) {
    if (known.contains(o.key)) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    throw Error("--set " + o.key, unknown_name("config key", o.key, names));
  }
  a.name = name;
  if (a.model_type.empty()) a.model_type = model_type;
  return a;
}

std::vector<std::string> config_warnings(const Architecture& a) {
  std::vector<std::string> warnings;
  if (!a.wrapper.empty()) {
    warnings.push_back(
        fmt::format("{}: the text model ({}) of {}: its parts for images and other inputs "
                    "are not modelled",
                    a.name, a.model_type, a.wrapper));
  }
  for (const std::string& key : a.unknown_keys) {
    warnings.push_back(
        fmt::format("{}: the configuration key {} is not known: if it changes the forward pass, "
                    "results are wrong",
                    a.name, key));
  }
  if (!a.quantization.empty() && !a.stored_weights) {
    warnings.push_back(fmt::format(
        "{}: its weights are stored as {}, forecasts take --weight-dtype", a.name, a.quantization));
  }
  return warnings;
}

}  // namespace kvcast
