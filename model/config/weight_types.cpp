#include "model/config/weight_types.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/config/architecture.h"

namespace kvcast {
namespace {

constexpr std::array groups{"embedding",     "head",        "norm", "bias",
                            "router",        "attention",   "mlp",  "experts",
                            "shared_expert", "state_space", "other"};
constexpr std::array attention_parts{"query", "key", "value", "output"};
constexpr std::array mlp_parts{"gate", "up", "down"};

/// The word among `words` that is `text`, which lives on; or "".
template <typename Words>
std::string_view known(const Words& words, std::string_view text) {
  const auto found = std::find(words.begin(), words.end(), text);
  return found == words.end() ? std::string_view() : *found;
}

/// Where a condition holds: in a layer of a model.
struct Place {
  std::size_t layer = 0;
  const Architecture& model;

  std::size_t layers() const { return model.decoder.layers.size(); }
  std::uint64_t experts() const {
    for (const LayerShape& l : model.decoder.layers) {
      if (l.experts) return l.experts->routing.num_experts;
    }
    return 0;
  }
  /// Query heads for each cached one.
  std::uint64_t group_size() const {
    const Heads& h = first_attending(model.decoder).heads;
    return h.num_attention_heads / h.num_key_value_heads;
  }
};

struct Condition {
  const char* name;
  bool (*holds)(const Place& p);
};
constexpr std::array conditions{
    // Of layers.
    Condition{"more-bits",
              [](const Place& p) {
                const std::size_t n = p.layers();
                return p.layer < n / 8 || p.layer >= 7 * n / 8 || (p.layer - n / 8) % 3 == 2;
              }},
    Condition{"first-2", [](const Place& p) { return p.layer < 2; }},
    Condition{"first-4", [](const Place& p) { return p.layer < 4; }},
    Condition{"first-eighth", [](const Place& p) { return p.layer < p.layers() / 8; }},
    Condition{"first-sixteenth", [](const Place& p) { return p.layer < p.layers() / 16; }},
    // Of models.
    Condition{"8-experts", [](const Place& p) { return p.experts() == 8; }},
    Condition{"groups-of-4", [](const Place& p) { return p.group_size() >= 4; }},
    Condition{"70b", [](const Place& p) { return p.layers() == 80 && p.group_size() > 1; }},
    Condition{"gpt-oss", [](const Place& p) { return p.model.model_type == "gpt_oss"; }},
    Condition{"fused", [](const Place& p) { return p.model.gguf_fused_qkv; }},
};

bool holds(const std::string& name, const WeightClass& weight, const Architecture* model) {
  if (model == nullptr || !weight.layer) return false;
  const auto found = std::find_if(conditions.begin(), conditions.end(),
                                  [&](const Condition& c) { return name == c.name; });
  return found->holds({*weight.layer, *model});
}

/// A tied table is the head too, but not one of layers' inputs.
bool is_for(const WeightRule& rule, const WeightClass& weight, const Architecture* model) {
  const bool tied_head = rule.of == "head" && weight.group == "embedding" && weight.part.empty() &&
                         model != nullptr && model->tied_embeddings;
  return (rule.of == weight.group || rule.of == weight.part || tied_head) &&
         std::all_of(rule.conditions.begin(), rule.conditions.end(),
                     [&](const std::string& c) { return holds(c, weight, model); });
}

/// llama.cpp's type where rows do not divide into a k-quant's blocks.
DType for_row(DType type, std::uint64_t elements) {
  const auto fits = [&](DType t) {
    return elements % static_cast<std::uint64_t>(width(t).block_elements) == 0;
  };
  if (width(type).block_elements != 256 || fits(type)) return type;
  DType instead = DType::IQ4_NL;
  switch (type) {
    case DType::Q2_K:
    case DType::Q3_K:
    case DType::TQ1_0:
    case DType::TQ2_0: instead = DType::Q4_0; break;
    case DType::Q4_K: instead = DType::Q5_0; break;
    case DType::Q5_K: instead = DType::Q5_1; break;
    case DType::Q6_K: instead = DType::Q8_0; break;
    default: break;
  }
  return fits(instead) ? instead : DType::FP16;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end = text.find(at); end != std::string_view::npos; end = text.find(at)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

/// "CLASS=DTYPE"; in presets also "CLASS@CONDITION@CONDITION=DTYPE".
WeightRule parse_rule(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw Error("'" + std::string(text) + "' after the first type; expected CLASS=DTYPE");
  }
  const std::vector<std::string_view> of = split(text.substr(0, equals), '@');
  std::vector<std::string> classes(groups.begin(), groups.end());
  classes.insert(classes.end(), attention_parts.begin(), attention_parts.end());
  classes.insert(classes.end(), mlp_parts.begin(), mlp_parts.end());
  if (known(classes, of[0]).empty()) throw unknown_name("class of weights", of[0], classes);
  WeightRule rule{
      std::string(of[0]), {of.begin() + 1, of.end()}, parse_dtype(text.substr(equals + 1))};
  for (const std::string& c : rule.conditions) {
    std::vector<std::string> names;
    for (const Condition& known_one : conditions) names.emplace_back(known_one.name);
    if (known(names, c).empty()) throw unknown_name("condition", c, names);
  }
  return rule;
}

}  // namespace

WeightClass weight_class(std::string_view name, std::size_t dimensions) {
  WeightClass weight{.group = "other", .part = {}};
  const std::size_t layers = name.starts_with("layers.") ? 0 : name.find(".layers.") + 1;
  std::string_view part = name.substr(0, name.rfind('.'));
  if (name.substr(layers).starts_with("layers.")) {
    std::string_view rest = part.substr(layers + 7);
    std::size_t layer = 0;
    const char* const end = std::from_chars(rest.data(), rest.data() + rest.size(), layer).ptr;
    weight.layer = layer;
    rest.remove_prefix(std::min(rest.size(), static_cast<std::size_t>(end - rest.data()) + 1));
    part = rest;
  } else {
    part = part.substr(part.rfind('.') + 1);
  }
  const auto inside = [&](std::string_view group) {
    if (!part.starts_with(group) || part.substr(group.size(), 1) != ".") return false;
    weight.group = group;
    weight.part = known(mlp_parts, part.substr(group.size() + 1));
    return true;
  };
  if (dimensions < 2) {
    const bool is_norm =
        (part.ends_with("_norm") || part == "state.norm") && name.ends_with(".weight");
    weight.group = is_norm ? "norm" : "bias";
  } else if (part == "embedding" || part == "head" || part == "router") {
    weight.group = known(groups, part);
  } else if (part == "layer_inputs") {
    weight.group = "embedding";
    weight.part = "layer_inputs";
  } else if (inside("experts") || inside("shared_expert") || !weight.layer) {
    return weight;
  } else if (part.starts_with("state.")) {
    weight.group = "state_space";
  } else if (part.find('.') != std::string_view::npos) {
    return weight;  // of Gemma 3n's streams
  } else if (!known(mlp_parts, part).empty()) {
    weight.group = "mlp";
    weight.part = known(mlp_parts, part);
  } else {
    weight.group = "attention";
    weight.part = part == "attention_output" ? "output" : known(attention_parts, part);
  }
  return weight;
}

DType WeightTypes::of(const std::string& name, std::size_t dimensions, std::uint64_t row_elements,
                      const Architecture* model) const {
  if (is_uniform()) return main;
  if (in_file != nullptr) {
    if (const std::optional<DType> stored = (*in_file)(name)) return *stored;
  }
  const WeightClass weight = weight_class(name, dimensions);
  DType type = main;
  for (const WeightRule& rule : rules) {
    if (is_for(rule, weight, model)) type = rule.type;
  }
  return for_row(type, row_elements);
}

WeightTypes parse_weight_types(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  const auto preset = std::find_if(weight_presets().begin(), weight_presets().end(),
                                   [&](const WeightPreset& p) { return p.name == parts[0]; });
  WeightTypes types;
  if (preset != weight_presets().end()) {
    // A preset may begin with the dtype of its own name.
    const std::vector<std::string_view> own = split(preset->types, ',');
    types = parse_dtype(own[0]);
    for (std::size_t i = 1; i < own.size(); ++i) types.rules.push_back(parse_rule(own[i]));
  } else {
    std::vector<std::string> names = dtype_names();
    if (parts[0].find('=') != std::string_view::npos) {
      throw Error(
          "weight types", fmt::format("'{}' first", parts[0]),
          fmt::format("a dtype or a preset of all weights before it, such as bf16,{}", parts[0]));
    }
    if (known(names, parts[0]).empty()) {
      for (const WeightPreset& p : weight_presets()) names.emplace_back(p.name);
      throw unknown_name("dtype", parts[0], names);
    }
    types = parse_dtype(parts[0]);
  }
  for (std::size_t i = 1; i < parts.size(); ++i) types.rules.push_back(parse_rule(parts[i]));
  types.text = text;
  return types;
}

}  // namespace kvcast
