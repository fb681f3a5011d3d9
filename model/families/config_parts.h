/// What the readers of config.json files share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/base/json_file.h"
#include "model/config/architecture.h"
#include "model/families/family.h"

namespace kvcast {

/// A decoder as the family's keys and `refine` say.
Architecture read_decoder(const JsonObject& c, const Family& family);

/// The tensors of a layer of OPT and of both stacks of Whisper.
TensorNames bart_layer();
/// Throws Error when the heads do not divide.
Heads read_heads(const JsonObject& c, const ConfigKeys& keys);
/// At most 10,000 layers, so that a wrong number fails before it allocates.
std::uint64_t read_num_layers(const JsonObject& c, std::string_view key);
/// `num_key_value_layers` and `mlkv_semantics` of MLKV models: which layers own keys and values,
/// and what the others read. Does nothing without the former.
void read_shared_key_values(Stack& stack, const JsonObject& c);
Function read_activation(const JsonObject& c, std::string_view key, Function fallback);
/// Frequencies of a head's rotated dims, from `rope_scaling` or transformers 5's `rope_parameters`;
/// what these lack comes from the family's keys. Throws Error for a form that is not modelled.
std::shared_ptr<const RopeTable> read_rope(const JsonObject& c, const ConfigKeys& keys,
                                           std::uint64_t head_dim);
/// head_dim^-0.5
double inverse_root(std::uint64_t head_dim);
/// Throws Error unless a flag is absent or `value`; `what` is not modelled otherwise.
void require_flag(const JsonObject& c, std::string_view key, bool value, std::string_view what);
/// Throws Error for mixtures of experts.
void refuse_experts(const JsonObject& c);
/// `fallback` is for an absent key; null is 0, no window.
std::uint64_t sliding_window(const JsonObject& c, std::uint64_t fallback);
/// Which layers have the window, from transformers' `layer_types`; does nothing without the key.
void read_layer_types(Stack& s, const JsonObject& c, std::uint64_t window);

}  // namespace kvcast
