/// The types that weights are stored in: one for all, or by class of weight and layer, as quantised
/// checkpoints have them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"

namespace kvcast {

struct Architecture;

/// What a weight is, by its name in the forward pass: "layers.3.experts.down.weight" is {"experts",
/// "down", 3}.
struct WeightClass {
  /// "embedding", "head", "norm", "bias" (all other vectors), "router", "attention", "mlp",
  /// "experts", "shared_expert", or "other": tables of positions, convolutions.
  std::string_view group;
  /// "query", "key", "value" or "output" of attention; "gate", "up" or "down"; "layer_inputs" of
  /// the embeddings; or "".
  std::string_view part;
  std::optional<std::size_t> layer = {};
};
WeightClass weight_class(std::string_view name, std::size_t dimensions);

/// Weights of a class have a type, if all conditions hold.
struct WeightRule {
  std::string of;                       ///< a group or a part
  std::vector<std::string> conditions;  ///< of layers ("more-bits") and models ("8-experts")
  DType type = DType::FP16;
  bool operator==(const WeightRule&) const = default;
};

struct WeightTypes {
  /// The same for all weights.
  WeightTypes(DType all = DType::FP16) : main(all), text(name(all)) {}  // NOLINT: a dtype is one

  DType main;                          ///< of all that no rule is for
  std::string text;                    ///< as it was given: "fp8", "q4_k_m", "fp8,head=bf16"
  std::vector<WeightRule> rules = {};  ///< the last that holds counts
  /// What the file of a model says of a weight, before everything else; null: no file was asked.
  using InFile = std::function<std::optional<DType>(const std::string& name)>;
  std::shared_ptr<const InFile> in_file = nullptr;

  bool is_uniform() const { return rules.empty() && in_file == nullptr; }
  /// Of one weight. Where types differ, rows that are no multiple of a k-quant's block have
  /// llama.cpp's type for such rows. Null: of no model that conditions could ask.
  DType of(const std::string& name, std::size_t dimensions, std::uint64_t row_elements,
           const Architecture* model) const;

  bool operator==(const WeightTypes&) const = default;
};

/// A dtype; a preset ("q4_k_m", see weight_presets()); or one of these and then CLASS=DTYPE, of
/// which the last that is for a weight counts: "fp8,embedding=bf16,head=bf16,experts=mxfp4". Throws
/// Error with the nearest names.
WeightTypes parse_weight_types(std::string_view text);

/// How checkpoints of a kind store their weights.
struct WeightPreset {
  std::string_view name;
  std::string types;  ///< as parse_weight_types takes them
  std::string_view source;
};
const std::vector<WeightPreset>& weight_presets();

}  // namespace kvcast
