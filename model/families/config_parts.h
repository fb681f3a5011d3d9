/// What the readers of config.json files share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
/// What a config says of its rotations besides the family's keys, for layers of this type (see
/// ConfigKeys::rope_layer_type). As in transformers, rope_scaling replaces all of rope_parameters,
/// and an empty object counts as absent.
std::optional<JsonObject> rope_parameters(const JsonObject& c, const char* layer_type = nullptr);
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
/// Granite's multipliers of embedding, scores, branches and logits.
void refine_granite(const JsonObject& c, Architecture& a);
/// Llama's shape: RMSNorm, RoPE, gated MLP, sequential residual.
Family llama_like(std::string_view model_type);
/// Of a config without one: of Mistral, of Qwen2 with use_sliding_window, and of Gemma 2.
inline constexpr std::uint64_t default_window = 4096;
/// `fallback` is for an absent key; null is 0, no window.
std::uint64_t sliding_window(const JsonObject& c, std::uint64_t fallback);
/// The same, but 0 without use_sliding_window.
std::uint64_t used_sliding_window(const JsonObject& c, std::uint64_t fallback);
/// Gives the window to layers of the type "sliding_attention", by `layer_types` or, without the
/// key, as `usual` says (null: none of them changes), and none to the others. Returns which have
/// it.
std::vector<bool> read_windows(Stack& s, const JsonObject& c, std::uint64_t window,
                               const std::function<bool(std::size_t)>& usual = nullptr);
/// Which layers are of this type and not of the other, from a list of types or, without the key, as
/// `usual` says.
std::vector<bool> layers_of_type(const JsonObject& c, std::size_t layers, const char* type,
                                 const std::function<bool(std::size_t)>& usual,
                                 const char* key = "layer_types",
                                 const char* other = "full_attention");
/// A list of 0 and 1 or of true and false, one a layer; without the key as `usual` says.
std::vector<bool> layer_flags(const JsonObject& c, std::string_view key, std::size_t layers,
                              const std::function<bool(std::size_t)>& usual);
/// The same from a list of the layers' indices.
std::vector<bool> listed_layers(const JsonObject& c, std::string_view key, std::size_t layers,
                                const std::function<bool(std::size_t)>& usual);

}  // namespace kvcast
