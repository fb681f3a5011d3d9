/// The tensor operators that a forward pass is made of.
///
/// The structs hold attributes only; shapes and element types stand with the tensors that a node of
/// the `Graph` reads and writes.
///
/// Layouts: hidden states are [batch, tokens, features], heads side by side within the features
/// ([batch, tokens, num_heads · head_dim]); scores are [batch, num_attention_heads, queries, keys].
/// Weights are stored [out_features, in_features], as PyTorch's nn.Linear does.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "model/base/count.h"
#include "model/base/dtype.h"
#include "model/graph/collective.h"

namespace kvcast {

/// The rate at which an operator's FLOPs run.
enum class RateClass {
  Matrix,           ///< the matrix unit on a large product with weights
  BatchedMatrix,    ///< the matrix unit on the per-head products of eager attention
  TiledAttention,   ///< the matrix unit inside a fused attention kernel
  DecodeAttention,  ///< the same kernel with one query a sequence, which streams the cache
  StateScan,        ///< the matrix unit on the chunks of a state space; one token: DecodeAttention
  Vector,           ///< element-wise arithmetic
};
inline constexpr int num_rate_classes = 6;

/// What every operator declares beside its attributes.
struct OpTraits {
  std::string_view name;
  RateClass rate_class;  ///< of tiled attention with several queries, see rate_class() in work.h
};

/// Two operators without attributes are equal.
template <typename T>
requires std::is_empty_v<T> && requires { T::traits; }
constexpr bool operator==(const T&, const T&) { return true; }

/// Head counts of one attention layer. Query head i reads key-value head
/// i / (num_attention_heads / num_key_value_heads).
struct Heads {
  std::uint64_t num_attention_heads = 0;
  std::uint64_t num_key_value_heads = 0;
  std::uint64_t head_dim = 0;
  bool operator==(const Heads&) const = default;
};

/// The frequencies of a rotary embedding, computed once for a model.
struct RopeTable {
  std::vector<double> inverse_frequencies;  ///< rotary_dims / 2 of them
  double gain = 1;                          ///< on cos and sin (longrope)
  double position_scale = 1;                ///< positions are divided by it (linear scaling)
  std::uint64_t max_positions = 0;          ///< that the frequencies hold for; 0: any
  /// Of passes that end beyond max_positions: longrope's for long texts, or none.
  std::vector<double> long_frequencies = {};
  /// Their base grows instead with the pass's end (dynamic): `base` by this factor; 0: it does not.
  double length_factor = 0;
  double base = 0;
  bool interleaved = false;  ///< pairs lie side by side, not half the rotated dims apart

  /// The dims of a head that pair `j` turns.
  struct Pair {
    std::size_t first;
    std::size_t second;
  };
  Pair pair(std::size_t j) const {
    if (interleaved) return {2 * j, 2 * j + 1};
    return {j, inverse_frequencies.size() + j};
  }
  /// Passes may end beyond max_positions.
  bool is_unbounded() const {
    return max_positions == 0 || !long_frequencies.empty() || length_factor > 0;
  }
  bool operator==(const RopeTable&) const = default;
};

/// Which (query, key) pairs are visible. Query i stands at position `past + i`.
struct Mask {
  bool causal = true;
  std::uint64_t window = 0;  ///< keys visible to a query, itself included; 0: all before it
  Count past;                ///< tokens in the cache before the first query
  std::uint64_t chunk = 0;   ///< only keys of the query's own stretch of so many positions; 0: all
  bool operator==(const Mask&) const = default;
};

/// y[b,t,:] = table[ids[b,t],:].  Inputs: table [rows, features], ids [batch, tokens].
struct Embedding {
  static constexpr OpTraits traits{"embedding", RateClass::Vector};
  bool first_for_unknown = false;  ///< ids without a row read row 0 (Gemma 3n)
  /// The table is a part of one that several devices share: ids of other rows give zeros.
  bool is_part = false;
  std::uint64_t first_row = 0;  ///< of the part
  bool operator==(const Embedding&) const = default;
};

/// y = x·Wᵀ (+ bias), or y = x·W if `transposed`.  Inputs: x [..., in] (transposed: [..., out]),
/// W [out, in], optionally bias [out].
/// Work: 2·rows·out·in FLOPs, and rows·out for the bias.
struct Linear {
  static constexpr OpTraits traits{"linear", RateClass::Matrix};
  bool transposed = false;
  bool operator==(const Linear&) const = default;
};

/// A product of each head's features with the head's own block of one weight [G·out, in], query
/// head h with block i = h / (H/G):  y_h = W_i·x_h, or y_h = W_iᵀ·x_h if `transposed`.
/// Inputs: x [..., H·in] (transposed: H·out), W.  Work: 2·rows·H·out·in FLOPs.
struct HeadLinear {
  static constexpr OpTraits traits{"head_linear", RateClass::Matrix};
  std::uint64_t num_heads = 0;   ///< H
  std::uint64_t num_blocks = 0;  ///< G
  bool transposed = false;
  bool operator==(const HeadLinear&) const = default;
};

/// scores[b,h,i,j] = q[b,i,h]·k[b,j,g(h)], all pairs, masked or not, as eager kernels do.
/// Inputs: q [batch, queries, H·hd], k [batch, keys, G·hd].  Work: 2·batch·H·queries·keys·hd FLOPs.
struct AttentionScores {
  static constexpr OpTraits traits{"attention_scores", RateClass::BatchedMatrix};
  Heads heads;
  bool operator==(const AttentionScores&) const = default;
};

/// The keys that each query of a sparse attention attends to: the `kept` best visible ones by
/// score[b,i,j] = Σ_h w[b,i,h]·max(q[b,i,h]·k[b,j], 0), or all if it sees no more; of equal ones
/// the earlier. Engines score some rows at a time, so scores are not in memory.
/// Inputs: q [batch, queries, H·hd], k [batch, keys, hd], w [batch, queries, H].
/// Output: indices, ascending, [batch, queries, the lesser of keys and kept], rows of fewer are
/// filled up; or, `as_mask`, the additive mask [batch, 1, queries, keys]: 0 for the chosen, the
/// lowest number elsewhere.
/// Work: H·(2·hd + 3) FLOPs a visible pair; choosing is not counted. Keys that some query sees are
/// read once. Source: transformers, models/deepseek_v32/modeling_deepseek_v32.py.
struct ChooseKeys {
  static constexpr OpTraits traits{"choose_keys", RateClass::TiledAttention};
  std::uint64_t num_heads = 0;
  std::uint64_t kept = 0;
  bool as_mask = false;
  Mask mask;
  Count visible_pairs;  ///< per sequence
  Count visible_keys;
  bool operator==(const ChooseKeys&) const = default;
};

/// out[b,i,h] = Σ_j probabilities[b,h,i,j]·v[b,j,g(h)], all pairs.
/// Inputs: probabilities [batch, H, queries, keys], v [batch, keys, G·hd].
struct AttentionValues {
  static constexpr OpTraits traits{"attention_values", RateClass::BatchedMatrix};
  Heads heads;
  bool operator==(const AttentionValues&) const = default;
};

/// out[b,i,h] = Σ_j probabilities[b,h,i,j]·v[b,j,g(h)] over the keys of at least `threshold`
/// probability.  Inputs: as AttentionValues.  With `unrotate` the rows of v are `rope_heads`
/// rotated keys side by side, from position 0 on: those that some head uses are rotated back. Work,
/// if none is skipped: 1 comparison and 2·vd FLOPs a pair, 6 a rotated pair of each row. A run
/// counts what it skips (execute::Skipped).
struct SparseValues {
  static constexpr OpTraits traits{"sparse_values", RateClass::BatchedMatrix};
  Heads heads;
  double threshold = 0;
  std::shared_ptr<const RopeTable> unrotate = nullptr;
  std::uint64_t rope_heads = 0;
  bool operator==(const SparseValues&) const = default;
};

/// The whole attention in tiles with an online softmax: no scores in memory, invisible pairs
/// skipped.  Inputs: q, k, v as above, optionally a bias [H or 1, queries or 1, keys] or, with
/// `has_sinks`, a logit [H] for each head that joins the softmax's denominator alone. Values may
/// have heads of another width vd: [batch, keys, Gv·vd] -> [batch, queries, H·vd]. Values that are
/// keys are the first vd features of each key head.
/// Work per visible pair and head: 2·hd and 2·vd FLOPs for the two products, 1 for the scale unless
/// it is 1, 4 for the softmax (maximum, subtract, exp, sum), 1 for a bias, 3 for a soft cap; 4 a
/// query and head for a sink; and 1 division per output element. Keys and values that some query
/// sees are read once, and so is the bias of visible pairs; a tensor that is both keys and values
/// is read once in all. With `kept` > 0 the last input has the keys that each query attends to, as
/// ChooseKeys gives them: pairs are those alone, and a query reads its own keys where all queries'
/// together are fewer than the visible ones. With `has_first` the last input is a FirstSeen's
/// result, read once, and pairs and keys are of all sequences together. For a gradient it has a
/// second result, the logarithm of each row's Σ exp(score) [batch, queries, H]: 2 FLOPs each.
/// Source: Dao et al. 2022 (arXiv:2205.14135), algorithm 1.
struct TiledAttention {
  static constexpr OpTraits traits{"tiled_attention", RateClass::TiledAttention};
  Heads heads;
  double scale = 1;
  double softcap = 0;  ///< scores become softcap·tanh(score/softcap); 0: none
  Mask mask;
  Count visible_pairs;  ///< per sequence and head, see visible_pairs() in model/work.h
  Count visible_keys;   ///< per sequence: keys that at least one query sees
  std::uint64_t num_value_heads = 0;  ///< Gv; 0: as keys
  std::uint64_t value_dim = 0;        ///< vd; 0: as keys
  bool values_are_keys = false;       ///< v is the same tensor as k
  bool has_sinks = false;             ///< the last input, but for that of has_first
  bool has_first = false;             ///< the last input
  std::uint64_t kept = 0;             ///< of ChooseKeys; 0: all visible keys
  /// Rotates keys as they are read, from position 0 on; null: they are used as stored.
  /// Work: 6 FLOPs a rotated pair of each visible key.
  std::shared_ptr<const RopeTable> key_rope = nullptr;

  /// The values' heads.
  Heads value_heads() const {
    return {heads.num_attention_heads,
            num_value_heads > 0 ? num_value_heads : heads.num_key_value_heads,
            value_dim > 0 ? value_dim : heads.head_dim};
  }
  bool operator==(const TiledAttention&) const = default;
};

/// The largest probability that any head gives a key:  out[b,j,i] = max over h of pooled[b,h,i,j],
/// and of before[b,j,i]. With `pool` > 0 each probability is the sum over that many neighbours,
/// zeros beyond the row's ends, divided by `pool`.
/// Inputs: probabilities [batch, H, queries, keys], optionally before [batch, keys, queries], the
/// shape of the output. Work for each probability: 1 comparison, and with pooling `pool` additions
/// (zeros included) and 1 division.
struct LargestProbability {
  static constexpr OpTraits traits{"largest_probability", RateClass::Vector};
  std::uint64_t pool = 0;
  bool operator==(const LargestProbability&) const = default;
};

/// The tokens that go on to the next layer: the last one, and those that it attends to most, summed
/// over the heads; ties go to the earlier token.  Input: probabilities of one query [batch, H, 1,
/// tokens]; output: token indices [batch, n], ascending.  Work: 1 FLOP a probability; sorting is
/// not counted.
struct KeepTokens {
  static constexpr OpTraits traits{"keep_tokens", RateClass::Vector};
};

/// Rows of each sequence.  Inputs: x [batch, tokens, features] or [batch, tokens], indices [batch,
/// n]; output [batch, n, features] or [batch, n]. Only these rows are read.
struct GatherRows {
  static constexpr OpTraits traits{"gather_rows", RateClass::Vector};
};

/// The tokens that a KeepTokens drops.  Input: the indices that it keeps [batch, n]; output: the
/// others [batch, m], ascending.
struct DropTokens {
  static constexpr OpTraits traits{"drop_tokens", RateClass::Vector};
};

// A tensor [batch, rows, 1] beside a cache holds the token of each of its rows. The operators that
// look tokens up count what they read and write, not the search.

/// The wanted tokens without a row in a cache.  Inputs: the cache's tokens [batch, rows, 1], the
/// wanted ones [batch, n], ascending; the last of these is the pass's own, which has no row yet.
/// Output [batch, missing + 1], ascending. A run finds how many are missing.
struct MissingTokens {
  static constexpr OpTraits traits{"missing_tokens", RateClass::Vector};
  Symbol missing;
  bool operator==(const MissingTokens&) const = default;
};

/// The rows of some tokens.  Inputs: cache [batch, rows, features], its tokens [batch, rows, 1],
/// the wanted ones [batch, n]; output [batch, n, features].
struct TokenRows {
  static constexpr OpTraits traits{"token_rows", RateClass::Vector};
};

/// The same for all but the last token, whose row is the last one of x.  Inputs: cache, its tokens,
/// x [batch, m, features], the wanted tokens [batch, n].
struct TokenStates {
  static constexpr OpTraits traits{"token_states", RateClass::Vector};
};

/// Overwrites a cache's rows of all tokens but the last.  Inputs: cache [batch, rows, features],
/// its tokens, x [batch, n, features], the tokens of x [batch, n]; output: the same cache.
struct StoreStates {
  static constexpr OpTraits traits{"store_states", RateClass::Vector};
};

/// The additive mask [batch, 1, queries, keys] of tokens that are not consecutive: 0 where the
/// key's token is not after the query's and within its window and chunk, the lowest number
/// elsewhere.  Inputs: tokens of the queries [batch, queries], of the keys [batch, keys].
struct TokenMask {
  static constexpr OpTraits traits{"token_mask", RateClass::Vector};
  std::uint64_t window = 0;  ///< as Mask::window, in tokens of the text
  std::uint64_t chunk = 0;   ///< as Mask::chunk
  bool operator==(const TokenMask&) const = default;
};

/// The first key that each query sees, where keys are tokens that ascend but are not consecutive: a
/// query sees what is not after it and within its window and chunk, so keys that lie side by side.
/// Input: tokens of the keys [batch, keys], of which the last are the queries'. Output: [batch,
/// queries].  Work: the tokens are read; looking them up is not counted.
struct FirstSeen {
  static constexpr OpTraits traits{"first_seen", RateClass::Vector};
  std::uint64_t window = 0;  ///< as Mask::window, in tokens of the text
  std::uint64_t chunk = 0;   ///< as Mask::chunk
  Symbol pairs;              ///< visible ones of all sequences, which a run finds
  bool operator==(const FirstSeen&) const = default;
};

/// Row-wise softmax over the last dimension.  Inputs: scores, optionally sinks [H] as in
/// TiledAttention. Work: 5 FLOPs an element (maximum, subtract, exp, sum, divide), and 4 a row with
/// a sink.
struct Softmax {
  static constexpr OpTraits traits{"softmax", RateClass::Vector};
};

/// What an element-wise operator computes; FLOPs an element in brackets.
enum class Function {
  Copy,         ///< x [0]; also layout and element-type changes
  Add,          ///< x + y [1]
  Multiply,     ///< x · y [1]
  Scale,        ///< parameter · x [1]
  ClampBelow,   ///< max(x, parameter) [1]
  Square,       ///< x² [1]
  Center,       ///< x - y [1]
  InverseRoot,  ///< 1/sqrt(x + parameter) [3]
  SoftCap,      ///< parameter·tanh(x/parameter) [3]
  Relu,         ///< max(x, 0) [1]
  Silu,         ///< x/(1 + exp(-x)) [4]
  Gelu,         ///< x/2·(1 + erf(x/√2)) [5]
  GeluTanh,     ///< x/2·(1 + tanh(√(2/π)(x + 0.044715·x³))) [9]
  OnePlus,      ///< 1 + x [1]
  QuickGelu,    ///< x/(1 + exp(-1.702·x)) [5]
  SquaredRelu,  ///< max(x, 0)² [2]
  Sigmoid,      ///< 1/(1 + exp(-x)) [4]
  Clamp,        ///< min(max(x, -parameter), parameter) [2]
  Xielu,        ///< x/2 + p·max(x, 0)² + n·(exp(m) - 1 - m), m = min(x, 0) [11]
};

std::string_view name(Function function);
std::uint64_t flops_per_element(Function function);

/// Inputs: x, and y for Add, Multiply and Center. y's dimensions are aligned with x's last ones; a
/// missing or smaller dimension (1, or head_dim against num_heads·head_dim) is repeated. A y of
/// more dimensions than x holds one number for each run of elements(x)/elements(y) elements.
/// Xielu's inputs are x, a [1] and b [1]: p = log(1 + exp(a)), n = 1/2 + log(1 + exp(b)), 7 FLOPs
/// in all. transformers has exp(-1e-6) for m above -1e-6. Source: Huang and Schlag 2024
/// (arXiv:2411.13010), eq. 8; transformers, activations.py.
struct Elementwise {
  static constexpr OpTraits traits{"elementwise", RateClass::Vector};
  Function function = Function::Copy;
  double parameter = 0;
  bool operator==(const Elementwise&) const = default;
};

/// f(gate)·up in one kernel, f an activation.  Inputs: gate, up. With a `limit` (gpt-oss):
/// g·sigmoid(alpha·g)·(u + 1), g = min(gate, limit), u = up clamped to ±limit. With a `cutoff` c
/// (Gemma 3n) f is of what stands above most of the row, max(gate - mean - c·σ, 0), with the row's
/// mean and standard deviation σ.
/// Work: the activation's FLOPs and 1 more an element; 11 an element with a limit; 6 more an
/// element and 4 a row with a cutoff.
struct GatedActivation {
  static constexpr OpTraits traits{"gated_activation", RateClass::Vector};
  Function function = Function::Silu;
  double limit = 0;  ///< 0: none
  double alpha = 1;
  std::optional<double> cutoff = {};  ///< in standard deviations
  bool operator==(const GatedActivation&) const = default;
};

/// Mean over the last dimension: [..., n] -> [..., 1].  Work: 1 FLOP an element.
struct RowMean {
  static constexpr OpTraits traits{"row_mean", RateClass::Vector};
};

/// y = w·x·rsqrt(mean(x²) + eps), over the last dimension or, with `groups` > 1, over each of that
/// many equal parts of it with one shared w (query and key norms). `unit_offset`: the weight is
/// 1 + w (Gemma). Without w, an optional input, it is 1. For a gradient the root is a second result
/// [..., groups].  Work: 4 FLOPs an element, 3 without w, and 3 a row.
/// Source: Zhang and Sennrich 2019 (arXiv:1910.07467), eq. 4.
struct RmsNorm {
  static constexpr OpTraits traits{"rms_norm", RateClass::Vector};
  double eps = 0;
  bool unit_offset = false;
  std::uint64_t groups = 1;
  bool operator==(const RmsNorm&) const = default;
};

/// y = (x - mean)·rsqrt(variance + eps)·w + b, the biased variance; w and b are optional inputs.
/// With `groups` > 1 each of that many equal parts of the row by itself; w and b have all elements,
/// or those of one part. For a gradient, mean and root are a second result [..., 2·groups].
/// Work: 5 FLOPs an element, 1 more for each of w and b, and 4 a row.
struct LayerNorm {
  static constexpr OpTraits traits{"layer_norm", RateClass::Vector};
  double eps = 0;
  std::uint64_t groups = 1;
  bool operator==(const LayerNorm&) const = default;
};

/// Rotates the first 2·inverse_frequencies dims of each head by position·frequency, half-split.
/// Inputs: x [batch, tokens, num_heads·head_dim], optionally positions [batch, tokens], which then
/// hold in the place of first_position. Work: 6 FLOPs a rotated pair.
/// Source: Su et al. 2021 (arXiv:2104.09864), eq. 15, in the half-split layout of transformers.
struct Rope {
  static constexpr OpTraits traits{"rope", RateClass::Vector};
  std::uint64_t num_heads = 0;
  std::uint64_t head_dim = 0;
  std::shared_ptr<const RopeTable> table;
  Count first_position;  ///< of token 0; positions are consecutive
  bool inverse = false;  ///< rotates back: by -position·frequency, with the inverse gain
  bool operator==(const Rope&) const = default;
};

/// cos or sin of position·frequency for `head_dim` dims of consecutive positions: no input, output
/// [tokens, head_dim]; dims that are not rotated hold 1 (cos) or 0 (sin). Or of positions [batch,
/// tokens], its input: output [batch, tokens, head_dim]. Eager kernels only.
/// Work: 2 FLOPs an element.
struct RopeAngles {
  static constexpr OpTraits traits{"rope_angles", RateClass::Vector};
  bool sine = false;
  std::shared_ptr<const RopeTable> table;
  Count first_position;
  bool inverse = false;  ///< of Rope
  bool operator==(const RopeAngles&) const = default;
};

/// [a | b | rest] -> [-b | a | 0] in each head, a and b the two halves of the rotated dims, or its
/// even and odd dims if `interleaved`. Eager kernels only.  Work: 1 FLOP an element.
struct RotateHalf {
  static constexpr OpTraits traits{"rotate_half", RateClass::Vector};
  std::uint64_t num_heads = 0;
  std::uint64_t rotary_dims = 0;
  bool interleaved = false;
  bool operator==(const RotateHalf&) const = default;
};

/// y = x·(1 + scale·ln(1 + floor((position + offset)/floor_scale))): queries that see far.
/// Inputs: x [batch, tokens, features], optionally positions [batch, tokens]. Work: 1 FLOP an
/// element.  Source: transformers, models/llama4/modeling_llama4.py (attn_temperature_tuning),
/// models/ministral3/modeling_ministral3.py (get_llama_4_attn_scale).
struct ScaleByPosition {
  static constexpr OpTraits traits{"scale_by_position", RateClass::Vector};
  double scale = 0;
  double floor_scale = 1;
  Count first_position;
  double offset = 1;
  bool operator==(const ScaleByPosition&) const = default;
};

/// Which experts read a token, and with what weights.  Inputs: logits [batch, tokens, E],
/// optionally a correction [E] that counts for the choice alone; outputs: the chosen experts
/// [batch, tokens, K] and their weights [batch, tokens, K, 1]. Ties go to the earlier expert.
/// Work: 5 FLOPs for each number of a softmax, 4 for each sigmoid, for each weight of near logits 5
/// a logit and 1, 1 a logit for the correction, 2 a weight to normalise, 1 to scale; choosing is
/// not counted. Sources: transformers, models/{mixtral,deepseek_v3,gpt_oss,llama4,phimoe}/
/// modeling_*.
struct Routing {
  enum class Score {
    Softmax,        ///< of all logits
    Sigmoid,        ///< of each logit
    SoftmaxOfBest,  ///< of the chosen logits
    /// Of the logits s near a chosen one m, (m - s)/max(|s|, m) ≤ `tolerance`, without those chosen
    /// before it (Phi-3.5-MoE's SparseMixer).
    SoftmaxOfNear,
  };
  /// How a group of experts is ranked.
  enum class GroupScore { Largest, TwoLargest };
  std::uint64_t num_experts = 0;          ///< E
  std::uint64_t num_experts_per_tok = 0;  ///< K
  Score score = Score::Softmax;
  double tolerance = 0;      ///< of SoftmaxOfNear
  bool normalizes = false;   ///< weights are divided by their sum
  double least_sum = 0;      ///< or by this, where the sum is less
  double weight_scale = 1;   ///< and multiplied by this
  std::uint64_t groups = 1;  ///< experts in order, equally many in each
  std::uint64_t groups_kept = 1;
  GroupScore group_score = GroupScore::Largest;
  bool operator==(const Routing&) const = default;
};
struct Route {
  static constexpr OpTraits traits{"route", RateClass::Vector};
  Routing routing;
  /// Distinct experts that the pass reads, summed over the layers with experts.
  Symbol distinct;
  bool operator==(const Route&) const = default;
};

/// Each token's product with its experts' blocks of one weight [E·out, in].  Inputs: x [batch,
/// tokens, in] or, of each expert's own rows, [batch, tokens, K·in]; experts [batch, tokens, K]; W;
/// optionally bias [E·out]. Output [batch, tokens, K·out].
/// Work: 2·rows·K·out·in FLOPs, and rows·K·out for the bias. Of W and bias, what is read is the
/// mean over the layers: `distinct`/`layers` of the E blocks.
struct ExpertLinear {
  static constexpr OpTraits traits{"expert_linear", RateClass::Matrix};
  std::uint64_t num_experts = 0;          ///< E
  std::uint64_t num_experts_per_tok = 0;  ///< K
  Symbol distinct;
  std::uint64_t layers = 1;
  bool measured_loads = false;  ///< forecasts know how likely each expert is to be chosen
  bool operator==(const ExpertLinear&) const = default;
};

/// Σ_k weight_k·y_k.  Inputs: y [batch, tokens, K·features], optionally weights [batch, tokens, K,
/// 1]; output [batch, tokens, features].  Work: 2 FLOPs an element of y, 1 without weights.
struct CombineExperts {
  static constexpr OpTraits traits{"combine_experts", RateClass::Vector};
  std::uint64_t num_experts_per_tok = 0;
  bool operator==(const CombineExperts&) const = default;
};

/// y_i = s_i + Σ_j c_ij·x_j: n streams go into m, by coefficients of each token.  Inputs: x_0 ...
/// x_(n-1) [batch, tokens, features]; s_0 ... s_(m-1), unless these are the x; c [batch, tokens,
/// m·n], a row of n for each i.  Outputs: y_0 ... y_(m-1).  Work: 2·n FLOPs an element of y.
/// Source: Baykal et al. 2023 (AltUp, arXiv:2301.13310), algorithm 1.
struct MixStreams {
  static constexpr OpTraits traits{"mix_streams", RateClass::Vector};
  std::uint64_t num_mixed = 1;  ///< n
  bool operator==(const MixStreams&) const = default;
};

/// [a_h | b_h] for each head h.  Inputs: a [batch, rows, H·n], b [batch, rows, H·r] or, where all
/// heads share it, [batch, rows, r]; output [batch, rows, H·(n + r)].
struct JoinHeads {
  static constexpr OpTraits traits{"join_heads", RateClass::Vector};
  std::uint64_t num_heads = 0;
  bool shared = false;
  bool operator==(const JoinHeads&) const = default;
};

/// Features first ... of each row: [batch, rows, all] -> [batch, rows, features].
struct SliceFeatures {
  static constexpr OpTraits traits{"slice_features", RateClass::Vector};
  std::uint64_t first = 0;
  bool operator==(const SliceFeatures&) const = default;
};

/// Appends new rows to a cache.  Inputs: past [batch, past, features], rows [batch, n, features];
/// output: the same cache with past + n rows. Only the new rows are read and written.
struct CacheAppend {
  static constexpr OpTraits traits{"cache_append", RateClass::Vector};
};

/// Drops `dropped` rows of a cache after its first `kept_first`, and moves the later rows up.
/// Input: a cache [batch, rows, features]; output: the same cache with rows - dropped rows.
/// Only the moved rows are read and written.
struct CacheEvict {
  static constexpr OpTraits traits{"cache_evict", RateClass::Vector};
  std::uint64_t kept_first = 0;
  Count dropped;
  Count moved;  ///< rows after the gap, 0 when there is none
  bool operator==(const CacheEvict&) const = default;
};

/// Rows one after another in memory, as torch.cat.  Inputs: parts [batch, n_i, ...], such as a
/// cache and new rows; output [batch, Σ n_i, ...]. All rows are read and written.
struct JoinRows {
  static constexpr OpTraits traits{"join_rows", RateClass::Vector};
};

/// The rows of each sequence in parts, one after the other.  Input: [batch, Σ n_i, ...]; outputs:
/// parts [batch, n_i, ...]. All rows are read and written.
struct SplitRows {
  static constexpr OpTraits traits{"split_rows", RateClass::Vector};
};

/// Sends rows of a cache to another rank of the run (model/methods/placement.h).
/// Input: cache [batch, rows, features]; output: the message [batch, sent, features]. The n-th Send
/// to a rank matches the n-th Receive there from this rank.
/// Work: the sent rows are read from the cache and written as a message.
struct Send {
  static constexpr OpTraits traits{"send", RateClass::Vector};
  std::uint64_t rank = 0;  ///< the receiver
  Count first_row;         ///< of the cache
  bool operator==(const Send&) const = default;
};

/// Waits for rows of a cache from another rank.  Inputs: cache [batch, rows, features], the message
/// [batch, sent, features]; output: the same cache with the sent rows from `first_row` on. Without
/// a cache the output is what was sent: the hidden states of the stage before.
/// Work: the message is read and its rows are written to the cache.
struct Receive {
  static constexpr OpTraits traits{"receive", RateClass::Vector};
  std::uint64_t rank = 0;  ///< the sender
  Count first_row;         ///< of the cache
  bool operator==(const Receive&) const = default;
};

/// What a group of devices does together with one tensor of each. AllReduce, ReduceScatter: x
/// [batch, tokens, features] summed over the members, in their order; of a ReduceScatter each
/// member has tokens/size rows. AllGather: the members' features or, `of_rows`, their rows side by
/// side; as many as the output has. An AllReduce runs as a ReduceScatter of features, a member's
/// from features·i/size on, and an AllGather.
/// Work: size - 1 additions an element of the member's own share of a sum; x is read and the
/// output written, and so are the messages that go to the others and come from them.
struct Collective {
  static constexpr OpTraits traits{"collective", RateClass::Vector};
  CollectiveKind kind = CollectiveKind::AllReduce;
  RankGroup group;
  std::uint64_t member = 0;  ///< this device's place in the group
  bool of_rows = false;
  bool operator==(const Collective&) const = default;
};

/// The tokens that experts on this device read, a row for each of their pairs of token and chosen
/// expert here. Without a group all devices have the same tokens; in a group each member has tokens
/// of its own, and sends a token once to each other member that has experts of it.
/// Inputs: x [batch, tokens, features], experts [batch, tokens, K] and weights [batch, tokens, K,
/// 1] of Route. Outputs: rows [1, pairs, features], their experts [1, pairs, 1] counted from
/// `first_expert`, weights [1, pairs, 1, 1], and places [1, pairs, 1]: member·batch·tokens + token.
/// Rows go by member, token, and rank of the expert in the token's choice. Work: experts and
/// weights are read, rows are read and written; messages as in Collective.
struct DispatchTokens {
  static constexpr OpTraits traits{"dispatch_tokens", RateClass::Vector};
  RankGroup group;  ///< of size 1: nothing is sent
  std::uint64_t member = 0;
  std::uint64_t num_experts = 0;  ///< E, of the model
  std::uint64_t first_expert = 0;
  std::uint64_t experts_here = 0;
  Symbol pairs;              ///< of all layers with experts; a run finds them
  Symbol distinct;           ///< as Route::distinct, of experts here
  std::uint64_t layers = 1;  ///< with experts
  Symbol sent;               ///< tokens, as pairs; in a group
  Symbol received;
  DType sent_as = DType::FP32;  ///< the type of features in messages, forecasts' alone
  bool operator==(const DispatchTokens&) const = default;
};

/// The sum of what experts make of each token, weighted, where the token came from.
/// Inputs: y [1, pairs, features], places [1, pairs, 1] of a DispatchTokens with this group and,
/// optionally, weights [1, pairs, 1, 1]; output [batch, tokens, features]. A member sums what its
/// experts give for a token before it sends it back. Work: 2 FLOPs an element of y (1 without
/// weights), and 1 an element that comes back; y, weights and places are read, the output is
/// written; messages.
struct ReturnTokens {
  static constexpr OpTraits traits{"return_tokens", RateClass::Vector};
  RankGroup group;
  std::uint64_t member = 0;
  Symbol sent;  ///< rows, of all layers: what DispatchTokens received
  Symbol received;
  std::uint64_t layers = 1;
  bool operator==(const ReturnTokens&) const = default;
};

/// Repeats each key-value head `repeats` times in memory, as eager PyTorch does before a product.
struct RepeatHeads {
  static constexpr OpTraits traits{"repeat_heads", RateClass::Vector};
  std::uint64_t repeats = 1;
  std::uint64_t head_dim = 0;
  bool operator==(const RepeatHeads&) const = default;
};

/// The last token of each sequence: [batch, tokens, features] -> [batch, 1, features].
struct LastToken {
  static constexpr OpTraits traits{"last_token", RateClass::Vector};
};

/// One-dimensional convolution over time with padding kernel/2.
/// Inputs: x [batch, frames, in], W [out, in, kernel], bias [out]; output [batch, frames/stride,
/// out].  Work: 2·output rows·out·in·kernel FLOPs (padded taps count) and output rows·out (bias).
struct Conv1d {
  static constexpr OpTraits traits{"conv1d", RateClass::Matrix};
  std::uint64_t kernel = 3;
  std::uint64_t stride = 1;
  bool operator==(const Conv1d&) const = default;
};

/// Convolution of each feature over time, behind what the cache holds of earlier tokens:
/// y[b,t,c] = Σ_j W[c,0,j]·x[b, t + rows - tokens - kernel + 1 + j, c], rows before the first are
/// 0. Inputs: x [batch, rows, C], of which the last `tokens` rows are of this pass, W [C, 1,
/// kernel], optionally bias [C]; output [batch, tokens, C]. `transposed` goes back in time, over as
/// many rows: y[b,t,c] = Σ_j W[c,0,j]·x[b, t + kernel - 1 - j, c], rows after the last are 0.
/// Work: 2·kernel FLOPs an element (taps on rows that are not there count) and 1 for the bias.
struct CausalConv {
  static constexpr OpTraits traits{"causal_conv", RateClass::Vector};
  std::uint64_t kernel = 4;
  bool transposed = false;
  bool operator==(const CausalConv&) const = default;
};

/// A linear recurrence over time with one state S [N, P] for each head h, of group g(h):
///   step = softplus(dt + dt_bias),  S ← e^(-e^A·step)·S + k·uᵀ,  y = Sᵀ·q (+ D·v)
/// with steps from min_step to max_step,
/// with u = step·v (Mamba-2: q, k, v are its C, B, x) or, for a `delta` rule, u = beta·(v - Sᵀ·k),
/// S as it has just decayed (Gated DeltaNet).
/// Inputs: q and k [batch, tokens, G·N], v [batch, tokens, H·P], dt [batch, tokens, H], dt_bias
/// [H], A [H], of a delta rule beta [batch, tokens, H], with `skips` D [H], and, unless the pass is
/// one of training, the state before it [batch, 0 or 1, H·N·P]; outputs: y [batch, tokens, H·P] and
/// the state [batch, 1, H·N·P]. With an A [H, N] each row of S decays at a rate of its own
/// (Mamba-1, P = 1): that is no product of matrices, so tokens follow one another (`chunk` 1), on
/// the vector unit. It is computed in chunks of `chunk` tokens, so that most of it is products of
/// matrices: with the decay c from the chunk's first token on,  y_i = e^(c_i)·Sᵀq_i + Σ_{j≤i}
/// e^(c_i-c_j)·(q_i·k_j)·u_j, S ← e^(c_n)·S + Σ_j e^(c_n-c_j)·k_j·u_jᵀ, and for a delta rule u_i =
/// beta_i·(v_i - e^(c_i)·Sᵀk_i
/// - Σ_{j<i} e^(c_i-c_j)·(k_i·k_j)·u_j). One token is a chunk of one.
/// Work: see work.cpp, which counts these sums.  Sources: Dao and Gu 2024 (arXiv:2405.21060),
/// section 6; Yang et al. 2024 (arXiv:2412.06464), section 3; Gu and Dao 2023 (arXiv:2312.00752),
/// algorithm 2.
struct StateScan {
  static constexpr OpTraits traits{"state_scan", RateClass::StateScan};
  std::uint64_t num_heads = 0;   ///< H
  std::uint64_t num_groups = 0;  ///< G, of heads with the same q and k
  bool delta = false;
  bool skips = false;
  std::uint64_t chunk = 1;
  double min_step = 0;
  double max_step = std::numeric_limits<double>::infinity();
  /// Limits of steps that change some.
  std::uint64_t num_limits() const {
    return std::uint64_t{min_step > 0} + std::uint64_t{std::isfinite(max_step)};
  }
  Count pairs;                        ///< per sequence: (i, j ≤ i) of the same chunk
  Count chunks;                       ///< per sequence
  std::optional<Count> limited = {};  ///< tokens with limited steps, of all sequences [all tokens]
  bool operator==(const StateScan&) const = default;
};

/// T5's bucketed position bias: table [buckets, H] -> [H, queries, keys]; query i stands at
/// `first_position + i`.  Source: Raffel et al. 2020 (arXiv:1910.10683), section 2.1.
struct RelativePositionBias {
  static constexpr OpTraits traits{"relative_position_bias", RateClass::Vector};
  std::uint64_t num_buckets = 32;
  std::uint64_t max_distance = 128;
  bool bidirectional = true;
  Count first_position;
  bool operator==(const RelativePositionBias&) const = default;
};

/// ALiBi: no input, output [H, 1, keys] = slope_h·j, slope and product rounded to bf16, times
/// `scale`.  Work: 2 FLOPs an element.  Source: Press et al. 2022 (arXiv:2108.12409), section 3.
struct AlibiBias {
  static constexpr OpTraits traits{"alibi_bias", RateClass::Vector};
  double scale = 1;
  std::uint64_t num_heads = 0;  ///< of the model; the output has those from first_head on
  std::uint64_t first_head = 0;
  bool operator==(const AlibiBias&) const = default;
};

/// What dropout multiplies a tensor of the output's shape by: 0 with this probability, else
/// 1 / (1 - probability). A byte for each is counted, as kernels keep; loops hold the number.
/// Input: seed [1], the step's, a whole number from 0 on. Masks of one pass have a stream of
/// numbers each. No FLOPs are counted.  Source: Srivastava et al. 2014, "Dropout", JMLR 15.
struct DropoutMask {
  static constexpr OpTraits traits{"dropout_mask", RateClass::Vector};
  double probability = 0;
  std::uint64_t stream = 0;
  /// Without the stream: masks of other layers cost the same, and fold into one group.
  friend bool operator==(const DropoutMask& a, const DropoutMask& b) {
    return a.probability == b.probability;
  }
};

/// The additive mask [queries, keys]: 0 where visible, the lowest number where not. No input.
struct CausalMask {
  static constexpr OpTraits traits{"causal_mask", RateClass::Vector};
  Mask mask;
  bool operator==(const CausalMask&) const = default;
};

}  // namespace kvcast
