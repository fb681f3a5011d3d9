/// A family of models in one descriptor: what its config.json, its checkpoints and its GGUF files
/// say.
///
/// A new family is a function in one of this folder's *_families.cpp, or in a new one, and a line
/// in families.cpp. Sources: transformers, models/FAMILY/{configuration,modeling}_FAMILY.py;
/// OpenELM: apple/corenet; GGUF: ggml-org/llama.cpp, convert_hf_to_gguf.py and
/// gguf-py/gguf/{constants,tensor_mapping}.py.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/json_file.h"
#include "model/config/architecture.h"
#include "model/families/gguf_reader.h"

namespace kvcast {

/// A second name of a key, read when the first is absent.
struct OtherName {
  const char* key;
  const char* other;
  /// Beside the key the other is out of date and means nothing; else the two must agree, as in
  /// transformers' attribute_map the one sets the other.
  bool may_differ = false;
};

/// The keys of config.json for what all decoders of equal layers have, and transformers' defaults
/// for absent keys: a saved config leaves out what equals the family's defaults. Null: the family
/// has no such key.
struct ConfigKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  const char* num_hidden_layers = "num_hidden_layers";
  std::uint64_t (*count_layers)(const JsonObject&) = nullptr;  ///< in the place of that key
  const char* num_attention_heads = "num_attention_heads";
  const char* num_key_value_heads = "num_key_value_heads";  ///< null: as many as heads
  const char* head_dim = "head_dim";
  const char* max_position_embeddings = "max_position_embeddings";
  const char* norm_eps = nullptr;
  const char* activation = "hidden_act";
  const char* tied_embeddings = "tie_word_embeddings";
  const char* attention_bias = nullptr;  ///< of queries, keys, values and the output projection
  const char* mlp_bias = nullptr;
  const char* alibi = nullptr;  ///< a switch to ALiBi from rotary embeddings
  const char* rope_theta = "rope_theta";
  const char* rotary_share = nullptr;  ///< of each head's dimensions; null: all rotate
  /// Defaults; those of the other keys are the family's `stack`. 0: required, but as said.
  std::uint64_t default_key_value_heads = 0;  ///< 0: as many as heads
  std::uint64_t default_head_dim = 0;         ///< 0: hidden size / heads
  std::uint64_t default_mlp_ratio = 0;        ///< of the MLP's width to the hidden size
  bool listed_mlp_widths = false;             ///< or a list of them, one a layer
  std::uint64_t default_max_positions = 0;    ///< 0: unlimited; of learned positions: required
  bool default_tied = false;
  double default_rotary_share = 1;
  double default_rope_theta = 10000;
  /// Where rope_parameters has an entry for each layer type: that of all layers, unless `refine`
  /// says otherwise. Null: rope_parameters are for all layers.
  const char* rope_layer_type = nullptr;
  bool interleaved_rope = false;
  /// The key of how many dims of a head rotate, and its default; null: the share of head_dim.
  const char* rope_dims = nullptr;
  std::uint64_t default_rope_dims = 0;
  const char* default_rope = nullptr;  ///< JSON: rope_parameters of a config without any
  /// Of `original_max_position_embeddings`; 0: what rope_parameters says
  std::uint64_t default_original_context = 0;
  std::vector<OtherName> other_names = {};
  /// Keys of the family's files that change nothing in it, beside those of inert_keys.h.
  std::vector<std::string_view> unread = {};
};

/// Part of the forward pass -> stored name, relative to the layer or to the model. A part with its
/// kind ("experts.down.weight") has the whole name. "{i}" is the number of an expert or a head,
/// each with a tensor of its own.
using TensorNames = std::map<std::string, std::string, std::less<>>;
/// `names` with these entries in the place of their own.
TensorNames with(TensorNames names, const TensorNames& changes);

/// A tensor that holds parts of a state space ("gate", "conv_value", ...), all rows of the first,
/// then of the next; with `by_group` in each of StateSpace::num_groups equal parts of it.
struct FusedStates {
  std::string tensor;  ///< its name in TensorNames
  std::vector<std::string_view> parts;
  bool by_group = false;
};

/// Where a Hugging Face checkpoint keeps the weights. A fused tensor holds all rows of its first
/// part, then of the next: "qkv" query, key and value, "gate_up" gate and up, "experts.gate_up" the
/// same for each expert, "kv_latents" kv_latent and key_rope; or, for each head, "query_heads"
/// query_nope and query_rope, "query_gates" query and attention_gate, "kv_up" key_up and value_up.
struct CheckpointNames {
  /// Of all tensors: files with and without it exist. "{stack}" is "encoder." or "decoder.".
  std::vector<std::string> prefixes{"model.", ""};
  std::string layer = "layers.";  ///< "layers." of "layers.3.self_attn..."
  TensorNames in_layer = {};
  TensorNames outside = {};
  /// Whole names of the embedding that both stacks share, and of the head when it is not tied.
  std::vector<std::string> embedding = {};
  std::string head = "lm_head.weight";
  /// In qkv each key-value head's group holds its query heads, its key and its value
  /// head.
  bool groups_heads = false;
  bool transposed = false;           ///< matrices stored [in, out], as by transformers' Conv1D
  bool experts_transposed = false;   ///< the same of all experts' matrices [E, in, out]
  bool experts_either_way = false;   ///< or [E, out, in], as transformers 5 writes them
  bool experts_interleaved = false;  ///< "experts.gate_up" has a row of gate, one of up, ...
  double norm_offset = 0;            ///< added to the weights of norms
  bool row_correction = false;       ///< routers' corrections are stored as [1, E]
  bool later_layers = false;         ///< files may hold layers after the model's
  std::vector<FusedStates> fused_states = {};
};

/// How llama.cpp's files of one family differ from another's.
struct GgufForm {
  const char* architecture = nullptr;  ///< null: llama.cpp writes no such files
  const char* other_architecture =
      nullptr;                     ///< of mixtures, or of the text part of models of images
  bool fused_qkv = false;          ///< attn_qkv: queries, keys, values; else by the file
  bool fused_gate_up = false;      ///< ffn_up: gate, up
  bool interleaved_heads = false;  ///< attn_q, attn_k: rows of LlamaModel.permute
  /// Falcon's second norm came later, so the first name went to the MLP's.
  bool mlp_norm_first = false;
  bool uneven_layers = false;  ///< numbers are 0 for layers without attention or without an MLP
  bool rotates = true;         ///< else the files have rotary keys that nothing reads
  bool later_layers = false;   ///< these files may hold some, if the others do not
  /// Value heads of state spaces: the first of each group, then the second of each; else by group.
  bool tiled_states = false;
  /// Names in the place of the usual ones, in layers and outside.
  TensorNames names = {};
  /// Whether a file of the architecture is of this family rather than of one that does not ask;
  /// null: does not ask.
  bool (*is_of)(const GgufReader&) = nullptr;
  /// Completes the config that the family's keys make; null: nothing to add.
  void (*complete)(const GgufReader&, nlohmann::json& config) = nullptr;
};

struct Family {
  std::vector<std::string_view> model_types;
  /// The layers' form, and defaults of what the keys say.
  Stack stack = {};
  ConfigKeys keys = {};
  /// What the keys do not say; null: nothing.
  void (*refine)(const JsonObject&, Architecture&) = nullptr;
  /// Reads all of a config instead, where layers differ or there are two stacks.
  Architecture (*read)(const JsonObject&) = nullptr;
  CheckpointNames names = {};
  /// Names that depend on the architecture or on the stack, "", "encoder." or "decoder.".
  void (*rename)(const Architecture&, std::string_view stack, CheckpointNames&) = nullptr;
  GgufForm gguf = {};
};

/// Those that others are made of.
namespace families {
Family exaone4();
Family gemma2();
Family granite();
Family granitemoe();
Family olmo2();
Family qwen3();
}  // namespace families

/// All families, in the order of families.cpp.
const std::vector<Family>& all_families();
/// Null when no family has that model_type.
const Family* find_family(std::string_view model_type);

}  // namespace kvcast
