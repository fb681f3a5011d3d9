/// What a model is made of, independent of the family that described it.
///
/// Every supported family (Llama, Phi-3, Gemma, OLMo, GPT-NeoX, OpenELM, Falcon, GPT-2, OPT, T5,
/// Whisper, ...) is a setting of these fields; the forward passes in `forward.h` read nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "model/base/units.h"
#include "model/config/weight_types.h"
#include "model/graph/op.h"

namespace kvcast {

enum class NormKind {
  Rms,            ///< RMSNorm with a weight
  RmsUnitOffset,  ///< RMSNorm whose weight is 1 + w (Gemma)
  Layer,          ///< LayerNorm with weight and bias
  LayerScale,     ///< LayerNorm with a weight alone (Cohere)
  LayerPlain,     ///< LayerNorm without parameters (OLMo)
};

/// What is done to queries and keys before their scores.
enum class QueryKeyNorm {
  None,
  Heads,             ///< RMSNorm of each head, one weight [head_dim] for all (OpenELM, Qwen3)
  HeadsUnitOffset,   ///< the same with 1 + w (Gemma 3)
  Whole,             ///< RMSNorm of all heads together (OLMo 2)
  LayerHeads,        ///< LayerNorm of each head, a weight of its own, no bias (Cohere, StableLM)
  LayerHeadsShared,  ///< LayerNorm of each head, one weight and one bias [head_dim] for all (Phi)
  RotatedHeads,      ///< RMSNorm of each head without weight, after the rotation (Llama 4)
  HeadsAfterRope,    ///< as Heads, but after the rotation (Hunyuan)
};
/// Heads are rotated before they are normed.
inline bool norms_rotated(QueryKeyNorm norm) {
  return norm == QueryKeyNorm::RotatedHeads || norm == QueryKeyNorm::HeadsAfterRope;
}

enum class Residual {
  Sequential,        ///< h = x + attn(norm1 x); y = h + mlp(norm2 h)
  ParallelTwoNorms,  ///< y = x + attn(norm1 x) + mlp(norm2 x) (GPT-NeoX)
  ParallelOneNorm,   ///< y = x + attn(n) + mlp(n), n = norm x (Falcon-7B)
};

enum class Position {
  Rope,
  Alibi,
  Learned,   ///< a table added to the embedding
  Sinusoid,  ///< a fixed table added to the embedding (Whisper's encoder)
  Relative,  ///< T5's bucketed bias on the scores
};

/// Where eager code multiplies by head_dim^-0.5.
enum class ScoreScale { OnScores, OnQuery, None };

/// MLKV: the keys that a layer reads from another layer.
enum class SharedKeys {
  Rotated,  ///< the owner's cache, rotated, as the paper describes
  /// The authors' code (zaydzuhri/pythia-mlkv, gpt_neox_mlkv/modeling_gpt_neox.py): the owner's
  /// rotated keys of earlier passes and its unrotated keys of this pass. So a prompt in one piece
  /// sees unrotated keys only, and gives other logits than the same prompt in chunks.
  Released,
};

/// What an attention keeps of each token.
enum class CacheForm {
  KeysAndValues,
  // Slim attention (Graef et al. 2025, arXiv:2503.05840):
  Keys,       ///< values are computed from them
  Values,     ///< keys are computed from them
  Inputs,     ///< the attention's input; both are computed from it
  FirstKeys,  ///< cross-attention: the first layer's keys, for all layers (appendix H)
};
/// "plain", "kcache", "vcache", "xcache", "hybrid"
std::string_view name(CacheForm form);

/// What a decoder layer's attentions keep.
struct LayerCaches {
  CacheForm self = CacheForm::KeysAndValues;
  CacheForm cross = CacheForm::KeysAndValues;
  bool operator==(const LayerCaches&) const = default;
};

/// A mixture of experts in the place of an MLP.
struct Experts {
  Routing routing;
  std::uint64_t intermediate_size = 0;         ///< of each expert
  std::uint64_t shared_intermediate_size = 0;  ///< of an MLP that all tokens read too; 0: none
  bool shared_gate = false;                    ///< that MLP's output is multiplied by sigmoid(w·x)
  bool router_bias = false;
  bool router_correction = false;  ///< Route's second input
  bool mlp_bias = false;           ///< of the experts' products
  bool weighs_input = false;       ///< a weight scales its expert's input (Llama 4)
  double gate_limit = 0;           ///< GatedActivation::limit
  double gate_alpha = 1;
  /// Of forecasts: how likely a token is to choose each expert; empty: all alike.
  std::vector<double> probabilities = {};
  /// Of forecasts: a device of several has the pairs of the fullest one in so many steps; 0: in the
  /// mean.
  std::uint64_t draws = 0;
  /// Of forecasts: copies of those that tokens choose most, which the devices have beside them.
  std::uint64_t copies = 0;
  bool operator==(const Experts&) const = default;
};

/// The cached tokens that a query attends to (DeepSeek-V3.2): those of the best scores between
/// heads of its own and one key that is cached beside the latent, half-split rotated.
struct Indexer {
  std::uint64_t num_heads = 0;  ///< 0: the choice is that of the layer below (GLM-5.2)
  std::uint64_t head_dim = 0;
  std::uint64_t kept = 0;  ///< index_topk
  std::shared_ptr<const RopeTable> rope = {};
  friend bool operator==(const Indexer& a, const Indexer& b) {
    return std::tie(a.num_heads, a.head_dim, a.kept) == std::tie(b.num_heads, b.head_dim, b.kept) &&
           *a.rope == *b.rope;
  }
};

/// Multi-head latent attention: what is cached of a token is one latent for all heads.
/// Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.
struct Latent {
  std::uint64_t query_rank = 0;  ///< q_lora_rank; 0: queries are projected at once
  std::uint64_t rank = 0;        ///< kv_lora_rank, c
  std::uint64_t nope_dim = 0;    ///< of each query and key head, not rotated
  std::uint64_t rope_dim = 0;    ///< of each query head, and of the one key that all heads share
  std::uint64_t value_dim = 0;   ///< of each value head
  std::optional<Indexer> indexer = {};
  std::uint64_t cached() const { return rank + rope_dim; }
  bool operator==(const Latent&) const = default;
};

/// A layer's state-space mixer: Mamba-2, with `delta` Gated DeltaNet or, with a `time_step_rank`,
/// Mamba-1, whose heads have one value each. See StateScan. Instead of keys and values of all
/// tokens it keeps one state for each head, and the last inputs of its convolutions.
struct StateSpace {
  std::uint64_t num_heads = 0;
  std::uint64_t num_groups = 0;
  std::uint64_t key_dim = 0;    ///< N
  std::uint64_t value_dim = 0;  ///< P, of each head
  std::uint64_t kernel = 4;     ///< of the convolutions of q, k and v
  std::uint64_t chunk = 1;      ///< tokens of a prompt that are computed together
  bool delta = false;
  bool scans = true;  ///< false: there is no state, only a convolution between two gates (LFM2)
  /// Mamba-1: keys, queries and time steps are projections of the convolved values, without biases;
  /// time steps by two, with so many features between. 0: all are projections of the layer's input.
  std::uint64_t time_step_rank = 0;
  bool projection_norms = false;  ///< RMSNorms of what the values are projected to (Jamba)
  bool projection_bias = false;   ///< of all but the output's
  bool output_bias = false;
  bool conv_bias = false;
  Function activation = Function::Silu;  ///< behind the convolutions
  /// Of an RMSNorm on the output: 0: none; 1: over all heads; more: over each part by itself.
  std::uint64_t norm_groups = 1;
  bool shares_norm = false;  ///< one weight [P] for all groups
  bool gate_before_norm = true;
  // Falcon-H1's multipliers.
  double input_scale = 1;
  double gate_scale = 1;
  double value_scale = 1;
  double key_scale = 1;
  double query_scale = 1;
  double time_step_scale = 1;
  double output_scale = 1;
  // Of the time steps of prompts.
  double min_time_step = 0;
  double max_time_step = std::numeric_limits<double>::infinity();
  std::uint64_t state_elements() const { return num_heads * key_dim * value_dim; }
  bool operator==(const StateSpace&) const = default;
};

/// Gemma 3n's form of a decoder, beside what its layers share with Gemma 3's (forward/altup.h).
/// Source: transformers, models/gemma3n/modeling_gemma3n.py.
struct AltUp {
  std::uint64_t num_streams = 1;     ///< hidden states of a token side by side
  std::size_t active = 0;            ///< the stream that attention and MLP of each layer compute
  bool scales_active = true;         ///< a weight on the active stream before it gates
  std::uint64_t laurel_rank = 1;     ///< of the low-rank branch beside attention (LAuReL)
  std::uint64_t layer_features = 1;  ///< of a token's own input to each layer
  std::uint64_t layer_rows = 1;      ///< of the table of these inputs; later ids read its first row
  std::uint64_t table_layers = 1;    ///< layers that the table has inputs for: of the whole model
  bool operator==(const AltUp&) const = default;
};

/// One transformer layer's form; layers differ in OpenELM, in models with windows, with experts ...
struct LayerShape {
  /// With a latent: of queries and expanded keys. No query heads: no attention.
  Heads heads;
  std::uint64_t intermediate_size = 0;  ///< 0 and no experts: no MLP
  std::uint64_t sliding_window = 0;     ///< 0: full attention
  /// The earlier layer whose keys and values it reads (MLKV, Gemma 3n); none: its own.
  std::optional<std::size_t> kv_layer = {};
  LayerCaches caches = {};
  std::shared_ptr<const RopeTable> rope = {};  ///< null: no rotation
  std::uint64_t attention_chunk = 0;           ///< Mask::chunk (Llama 4); 0: none
  std::optional<Experts> experts = {};
  std::optional<Latent> latent = {};
  std::optional<double> gate_cutoff = {};      ///< GatedActivation::cutoff
  std::optional<StateSpace> state_space = {};  ///< beside the attention or in its place
  bool attends() const { return heads.num_attention_heads > 0; }
  bool has_mlp() const { return intermediate_size > 0 || experts; }
  /// Rotations of the same frequencies are equal.
  friend bool operator==(const LayerShape& a, const LayerShape& b) {
    const auto parts = [](const LayerShape& l) {
      return std::tie(l.heads, l.intermediate_size, l.sliding_window, l.kv_layer, l.caches,
                      l.attention_chunk, l.experts, l.latent, l.state_space, l.gate_cutoff);
    };
    const bool same_rope = a.rope && b.rope ? *a.rope == *b.rope : a.rope == b.rope;
    return same_rope && parts(a) == parts(b);
  }
};

/// A stack of layers: the decoder of a decoder-only model, or one side of an encoder-decoder.
struct Stack {
  std::vector<LayerShape> layers;
  NormKind norm = NormKind::Rms;
  double norm_eps = 1e-5;
  Residual residual = Residual::Sequential;
  bool pre_norms = true;    ///< a norm on each branch's input; not in OLMo 2
  bool post_norms = false;  ///< a norm on each branch's output (Gemma 2)
  QueryKeyNorm query_key_norm = QueryKeyNorm::None;
  bool value_norm = false;  ///< RMSNorm of each value head without weight (Gemma 3n)
  std::optional<AltUp> altup = {};
  bool final_norm = true;
  Position position = Position::Rope;
  std::uint64_t position_rows = 0;    ///< rows of a Learned or Sinusoid table
  std::uint64_t position_offset = 0;  ///< OPT's table starts at row 2
  std::uint64_t relative_buckets = 0;
  std::uint64_t relative_max_distance = 0;
  double attention_scale = 1;  ///< on q·k
  ScoreScale score_scale = ScoreScale::OnScores;
  bool clamps_masked_scores = false;  ///< eager code clamps after the mask (Llama, OPT)
  bool query_bias = false;
  bool key_bias = false;
  bool value_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool gated_mlp = false;
  Function activation = Function::Silu;
  double attention_softcap = 0;  ///< 0: none
  bool attention_sinks = false;  ///< a learned logit a head in the softmax (gpt-oss)
  double branch_scale = 1;       ///< on each branch's output (Granite)
  bool attention_gate = false;   ///< its output times the sigmoid of a projection (Qwen3-Next)
  // Falcon-H1's multipliers.
  double attention_input_scale = 1;
  double attention_output_scale = 1;
  double gate_scale = 1;       ///< on an MLP's gate, before the activation
  double mlp_scale = 1;        ///< on an MLP's output
  double projection_clip = 0;  ///< queries, keys, values are clamped to ± this; 0: none (OLMo)
  double position_scale = 0;   ///< ScaleByPosition of queries; 0: none
  double position_floor = 1;
  double floor_offset = 1;
  bool scales_rotated = false;  ///< in all layers, not only in those without rotation
  bool causal = true;
  bool cross_attention = false;
  /// MLKV: the number of layers with keys and values; the others read those of the nearest such
  /// layer below. Each projection is a tensor of its own. 0: not MLKV.
  std::uint64_t num_key_value_layers = 0;
  SharedKeys shared_keys = SharedKeys::Rotated;
};

/// The layers of a larger model that a layer-pruned model keeps.
struct KeptLayers {
  std::vector<std::size_t> kept;  ///< indices in the whole model, ascending; empty: not pruned
  std::size_t of = 0;             ///< layers of the whole model
  bool operator==(const KeptLayers&) const = default;
};

/// A whole model.
struct Architecture {
  std::string name;
  /// The folder or file that it was read from; models of one origin have the same weights. Empty if
  /// it was made up, or changed since.
  std::filesystem::path origin;
  std::string model_type;  ///< of the config: "llama", "gpt_neox", ...
  /// The model_type of the multimodal model that this is the text model of: "gemma3", "llama4" ...;
  /// empty: of none.
  std::string wrapper;
  std::uint64_t hidden_size = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t max_position_embeddings = 0;  ///< nominal context; 0: unlimited
  bool tied_embeddings = false;
  double embedding_scale = 1;  ///< sqrt(hidden_size) in Gemma
  double logit_scale = 1;      ///< hidden_size^-0.5 in T5 v1.0
  double logit_softcap = 0;    ///< 0: none
  bool head_bias = false;      ///< of the logits (Phi)
  Stack decoder;

  /// Encoder-decoder models only.
  bool encoder_decoder = false;
  Stack encoder;
  std::uint64_t num_mel_bins = 0;          ///< Whisper: input features of the convolutions
  std::uint64_t max_source_positions = 0;  ///< Whisper: encoder frames, 1500

  /// The method that `kvcast convert` made the weights for, if its forward pass reads other tensors
  /// than the family's; the checkpoint has them under the names that the pass uses.
  std::string converted_for;
  /// The decoder layers that prune_layers() kept.
  KeptLayers pruning;
  /// How its weights are quantised, "fp8", "mxfp4" ...; empty: they are not.
  std::string quantization;
  /// The types of its weights as its config or file says them; empty: it does not, or not so that
  /// kvcast knows how wide they are.
  std::optional<WeightTypes> stored_weights;
  /// What its products with them read activations in, FP8 or INT8, as its config says; empty: as
  /// they are.
  std::optional<DType> stored_operands;
  /// The type that it is published in, FP32, FP16 or BF16: config.json's `dtype` or `torch_dtype`;
  /// of a GGUF file the type of most weights, or FP16 if that is a narrower one; empty: it does not
  /// say.
  std::optional<DType> published_dtype;
  /// Of weights, activations and cache where a request names none.
  DType default_dtype() const { return published_dtype.value_or(DType::BF16); }
  bool gguf_fused_qkv = false;  ///< GGUF files hold queries, keys and values as one tensor
  /// Keys of its configuration that its reader does not know.
  std::vector<std::string> unknown_keys;

  std::uint64_t num_hidden_layers() const { return decoder.layers.size(); }
};

/// Throws Error, starting with `where`, for a model whose weights were converted for a method.
void check_unconverted(const Architecture& a, std::string_view where);

/// Both were read from the same folder or file, by whatever name, and not changed since.
inline bool same_origin(const Architecture& a, const Architecture& b) {
  std::error_code missing;
  return !a.origin.empty() && std::filesystem::equivalent(a.origin, b.origin, missing);
}

/// Vocabularies of one tokenizer are padded differently: Qwen2.5's 0.5B has 151,936 rows, its 7B
/// 152,064. Ours: twice that difference.
inline constexpr std::uint64_t vocabulary_padding = 256;

/// Whether both may read the same token ids: their vocabularies differ by padding at most, rows of
/// ids that no text has. What tokenizers make of the ids is not seen here.
inline bool may_share_tokens(const Architecture& a, const Architecture& b) {
  const auto [fewer, more] = std::minmax(a.vocab_size, b.vocab_size);
  return more - fewer <= vocabulary_padding;
}

/// Its keys have a norm of their own.
inline bool normalizes_keys(const Stack& stack) {
  return stack.query_key_norm != QueryKeyNorm::None;
}

/// Some of its layers read the keys and values of others (MLKV, Gemma 3n).
inline bool shares_key_values(const Stack& stack) {
  return std::any_of(stack.layers.begin(), stack.layers.end(),
                     [](const LayerShape& layer) { return layer.kv_layer.has_value(); });
}

/// Positions that all the stack's rotations hold for; 0: any.
inline std::uint64_t most_rotated_positions(const Stack& stack) {
  std::uint64_t most = 0;
  for (const LayerShape& layer : stack.layers) {
    if (!layer.rope || layer.rope->max_positions == 0) continue;
    const std::uint64_t own = layer.rope->max_positions;
    most = most == 0 ? own : std::min(most, own);
  }
  return most;
}

/// The first layer with attention; the first layer if there is none.
inline const LayerShape& first_attending(const Stack& stack) {
  const auto found = std::find_if(stack.layers.begin(), stack.layers.end(),
                                  [](const LayerShape& layer) { return layer.attends(); });
  return found == stack.layers.end() ? stack.layers.front() : *found;
}

/// The layer has no window or chunk.
inline bool sees_all(const LayerShape& layer) {
  return layer.sliding_window == 0 && layer.attention_chunk == 0;
}

inline bool has_windows(const Stack& stack) {
  return !std::all_of(stack.layers.begin(), stack.layers.end(), sees_all);
}

/// Some layer keeps a state in the place of keys and values.
inline bool has_states(const Stack& stack) {
  return std::any_of(stack.layers.begin(), stack.layers.end(),
                     [](const LayerShape& layer) { return layer.state_space.has_value(); });
}

/// Layers of the stack with experts.
inline std::size_t layers_with_experts(const Stack& stack) {
  return static_cast<std::size_t>(
      std::count_if(stack.layers.begin(), stack.layers.end(),
                    [](const LayerShape& layer) { return layer.experts.has_value(); }));
}

/// Leaves keys and values to `owners` of the stack's layers: 0, n, 2n, ... with n layers in a
/// group; `owners` divides the layers. The other layers of a group read those of its first. Source:
/// Zuhri et al. 2024 (arXiv:2406.09297), section 3, and the authors' convert_to_mlkv.py, which puts
/// owners at int(i · layers / owners).
inline void share_key_values(Stack& stack, std::uint64_t owners) {
  const std::size_t group = stack.layers.size() / owners;
  stack.num_key_value_layers = owners;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    const std::size_t owner = i / group * group;
    stack.layers[i].kv_layer = owner == i ? std::nullopt : std::optional(owner);
  }
}

/// Features of a layer's cached keys (and of its values): num_key_value_heads · head_dim.
/// Throws Error on overflow.
inline std::uint64_t kv_features(const Heads& heads) {
  return checked_multiply(heads.num_key_value_heads, heads.head_dim);
}
/// Features of its queries: num_attention_heads · head_dim.
inline std::uint64_t query_features(const Heads& heads) {
  return checked_multiply(heads.num_attention_heads, heads.head_dim);
}

}  // namespace kvcast
