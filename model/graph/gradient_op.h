/// The operators that training adds to those of forward passes: adjoints, losses, the update.
///
/// An adjoint takes the gradient g of an operator's result, and what the operator has saved, to the
/// gradient of one or more of its operands. Where an operator's adjoint is an operator of forward
/// passes, that one is recorded (model/gradient/adjoints.cpp).
///
/// Gradients of weights are summed over the passes of a step: `so far`, an optional last input, is
/// the sum before the pass, in whose place the result lies. Results that start from it do no more
/// additions than those that start from 0.
#pragma once

#include <cstdint>

#include "model/graph/forward_op.h"

namespace kvcast {

/// The gradient of the weight of a Linear or HeadLinear: W̄_i = Σ_rows Σ_{heads h of block i}
/// a_h·b_hᵀ.  Inputs: a [..., H·out], b [..., H·in], so far; output [G·out, in]. a is g and b the
/// operator's x, or the other way round for a transposed HeadLinear.
/// Work: 2·rows·H·out·in FLOPs.
struct WeightGradient {
  static constexpr OpTraits traits{"weight_gradient", RateClass::Matrix};
  std::uint64_t num_heads = 1;   ///< H
  std::uint64_t num_blocks = 1;  ///< G
  bool operator==(const WeightGradient&) const = default;
};

/// x summed over what an Elementwise repeats of its second operand y, whose shape the output has;
/// of a bias: over the rows.  Inputs: x, so far.  Work: 1 FLOP an element of x.
struct SumRepeats {
  static constexpr OpTraits traits{"sum_repeats", RateClass::Vector};
};

/// x summed over the `repeats` copies of each head that RepeatHeads has made: [batch, rows,
/// G·repeats·hd] -> [batch, rows, G·hd].  Work: 1 FLOP an element of x.
struct SumHeads {
  static constexpr OpTraits traits{"sum_heads", RateClass::Vector};
  std::uint64_t repeats = 1;
  std::uint64_t head_dim = 0;
  bool operator==(const SumHeads&) const = default;
};

/// y[..., i] = x/n for each of n features: [..., 1] -> [..., n].  Work: 1 FLOP an element of y.
struct SpreadMean {
  static constexpr OpTraits traits{"spread_mean", RateClass::Vector};
};

/// out[b,j,g] = Σ_{heads h of g} Σ_i s[b,h,i,j]·q[b,i,h], all pairs: the gradients of keys (from
/// those of scores, and queries) and of values (from probabilities, and g).
/// Inputs: s [batch, H, queries, keys], q [batch, queries, H·hd]; output [batch, keys, G·hd].
/// Work: 2·hd FLOPs an element of s.
struct TransposedValues {
  static constexpr OpTraits traits{"transposed_values", RateClass::BatchedMatrix};
  Heads heads;
  bool operator==(const TransposedValues&) const = default;
};

/// The gradients of a TiledAttention's q, k and v, from probabilities p = exp(s - l) that are
/// computed again, l the logarithm of their sum, which the attention has saved as its second result
/// [batch, queries, H]. With δ = Σ g∘o of a row: v̄ += pᵀg; s̄ = p∘(g·vᵀ - δ), through a soft cap and
/// the scale; q̄ = s̄·k; k̄ += s̄ᵀ·q.
/// Inputs: g and o [batch, queries, H·vd], l, q, k, v, optionally the bias as in TiledAttention,
/// which has no gradient here, or the chosen keys. Outputs: q̄, k̄, v̄; where values are keys, q̄ and
/// the sum of the others. Work per visible pair and head: 6·hd + 4·vd FLOPs for five products, 4
/// for p and s̄; 2 for a scale other than 1, 6 for a soft cap, 1 for a bias; 2 an element of o. All
/// inputs but the bias are read once, keys and values as in TiledAttention. Source: Dao 2023
/// (arXiv:2307.08691), algorithm 2.
struct TiledAttentionGradient {
  static constexpr OpTraits traits{"tiled_attention_gradient", RateClass::TiledAttention};
  TiledAttention forward;
  bool operator==(const TiledAttentionGradient&) const = default;
};

/// x̄ = f'·g of a function of one operand.  Inputs: what was saved, y for InverseRoot, SoftCap, Relu
/// and Sigmoid, otherwise x; g; and Xielu's a and b. Output: x̄, in the shape of x.
/// Work: see gradient_flops_per_element(); 8 more for Xielu.
struct ElementwiseGradient {
  static constexpr OpTraits traits{"elementwise_gradient", RateClass::Vector};
  Function function = Function::Copy;
  double parameter = 0;
  bool operator==(const ElementwiseGradient&) const = default;
};
/// Whether the adjoint needs the function's result, not its operand.
bool saves_result(Function function);
/// Of ElementwiseGradient. Functions without one, such as Add, assert.
std::uint64_t gradient_flops_per_element(Function function);

/// The gradient of one of Xielu's weights: ā = σ(a)·Σ g·max(x, 0)² or, `of_negative`,
/// b̄ = σ(b)·Σ g·(exp(m) - 1 - m), m = min(x, 0).  Inputs: g, x, the weight [1], so far; output [1].
/// Work: 4 FLOPs an element, or 6, and 6.
struct XieluWeightGradient {
  static constexpr OpTraits traits{"xielu_weight_gradient", RateClass::Vector};
  bool of_negative = false;
  bool operator==(const XieluWeightGradient&) const = default;
};

/// ā = g∘c∘f'(a), c̄ = g∘f(a) of y = f(a)·c.  Inputs: a, c, g; outputs: ā, c̄.
/// With a cutoff k, f is of z = max(a - mean - k·σ, 0): ā = h - mean(h) - k·mean(h)·(a - mean)/σ,
/// where h is z̄, or 0 for a z of 0; the last term is 0 in a row whose σ is.
/// Work per element: that of f and of its gradient, and 2; 20 with a limit; 10 more with a cutoff,
/// and 7 a row.
struct GatedActivationGradient {
  static constexpr OpTraits traits{"gated_activation_gradient", RateClass::Vector};
  GatedActivation forward;
  bool operator==(const GatedActivationGradient&) const = default;
};

/// x̄ = p∘(g - Σ g∘p) of each row.  Inputs: p, g.  Work: 4 FLOPs an element.
struct SoftmaxGradient {
  static constexpr OpTraits traits{"softmax_gradient", RateClass::Vector};
};

/// x̄ of an RmsNorm: with n = x·r, u = g∘w: r·(u - n·mean(u∘n)).
/// Inputs: g, x, r [..., groups], which the norm has saved as its second result, optionally w.
/// Work: 6 FLOPs an element, 1 more with w, and 1 a mean; 1 an element of a w that is 1 + w.
struct RmsNormGradient {
  static constexpr OpTraits traits{"rms_norm_gradient", RateClass::Vector};
  RmsNorm forward;
  bool operator==(const RmsNormGradient&) const = default;
};

/// x̄ of a LayerNorm: with n = (x - mean)·r, u = g∘w: r·(u - mean(u) - n·mean(u∘n)).
/// Inputs: g, x, [mean, r] of each group [..., 2·groups], the norm's second result, optionally w.
/// Work: 9 FLOPs an element, 1 more with w, and 2 a group.
struct LayerNormGradient {
  static constexpr OpTraits traits{"layer_norm_gradient", RateClass::Vector};
  LayerNorm forward;
  bool operator==(const LayerNormGradient&) const = default;
};

/// w̄ = Σ g∘n over the rows and the groups that share w, n as above: `centers` of a LayerNorm.
/// Inputs: g, x, what the norm has saved, so far; output: w's shape.
/// Work: 3 FLOPs an element, 1 more if it centers.
struct NormWeightGradient {
  static constexpr OpTraits traits{"norm_weight_gradient", RateClass::Vector};
  bool centers = false;
  std::uint64_t groups = 1;
  bool operator==(const NormWeightGradient&) const = default;
};

/// The gradient of an ExpertLinear's x, over the experts where these share it.  Inputs: g [batch,
/// tokens, K·out], experts, W; output: x's shape.  Work: 2·rows·K·out·in FLOPs; of W what the
/// ExpertLinear reads.
struct ExpertInputGradient {
  static constexpr OpTraits traits{"expert_input_gradient", RateClass::Matrix};
  ExpertLinear forward;
  bool operator==(const ExpertInputGradient&) const = default;
};

/// The gradient of its W; blocks of experts that no token has chosen are 0.  Inputs: g, x, experts,
/// so far; output [E·out, in].  Work: 2·rows·K·out·in FLOPs.
struct ExpertWeightGradient {
  static constexpr OpTraits traits{"expert_weight_gradient", RateClass::Matrix};
  ExpertLinear forward;
  bool operator==(const ExpertWeightGradient&) const = default;
};

/// The gradient of its bias.  Inputs: g, experts, so far; output [E·out].
/// Work: 1 FLOP an element of g.
struct ExpertBiasGradient {
  static constexpr OpTraits traits{"expert_bias_gradient", RateClass::Vector};
  std::uint64_t num_experts_per_tok = 0;  ///< K
  bool operator==(const ExpertBiasGradient&) const = default;
};

/// ȳ_k = weight_k·g and weight̄_k = Σ g∘y_k of a CombineExperts.  Inputs: g [batch, tokens,
/// features] and, unless it has no weights, y and weights; outputs: ȳ, then with weights theirs.
/// Work: 3 FLOPs an element of y, 0 without weights.
struct CombineExpertsGradient {
  static constexpr OpTraits traits{"combine_experts_gradient", RateClass::Vector};
  std::uint64_t num_experts_per_tok = 0;
  bool operator==(const CombineExpertsGradient&) const = default;
};

/// The gradient of a Route's logits from that of its weights; which experts are chosen is held
/// constant.  Inputs: logits [batch, tokens, E], experts [batch, tokens, K], g [batch, tokens, K,
/// 1]; output: the logits' shape. Work: 7 FLOPs a logit and 2 a weight of a softmax of all logits;
/// 9 a weight of one of the chosen ones; 7 a weight of sigmoids; for each weight of near logits 7 a
/// logit and 4; 5 a weight and 1 a token to normalise, 1 a weight to scale. Of the chosen ones'
/// softmax and of sigmoids only the chosen logits are read.
struct RouteGradient {
  static constexpr OpTraits traits{"route_gradient", RateClass::Vector};
  Routing routing;
  bool operator==(const RouteGradient&) const = default;
};

/// x̄_j = Σ_i c_ij·ȳ_i, and ȳ_j more where the x are also what is mixed `onto`; c̄_ij = Σ ȳ_i·x_j
/// over the features, of a MixStreams. Inputs: ȳ_0 ... ȳ_(m-1), x_0 ... x_(n-1), c; outputs: x̄_0
/// ... x̄_(n-1), c̄.  Work: 4·m FLOPs an element of x.
struct MixStreamsGradient {
  static constexpr OpTraits traits{"mix_streams_gradient", RateClass::Vector};
  std::uint64_t num_mixed = 1;  ///< n
  bool onto_mixed = false;
  bool operator==(const MixStreamsGradient&) const = default;
};

/// The gradient of a CausalConv's W: W̄[c,0,j] = Σ_{b,t} g[b,t,c]·x[b, t - kernel + 1 + j, c]; that
/// of x is a transposed CausalConv.  Inputs: g and x [batch, tokens, C], so far; output [C, 1,
/// kernel].  Work: 2·kernel FLOPs an element of g (taps on rows that are not there count).
struct CausalConvWeightGradient {
  static constexpr OpTraits traits{"causal_conv_weight_gradient", RateClass::Vector};
};

/// The gradients of a StateScan that starts from no state. It goes back over the tokens with the
/// gradient R of the state: with a = e^(-e^A·step) of a token, S its state, S' the one before, g
/// the gradient of y,
///   R += q·gᵀ,  q̄ = S·g,  k̄ = R·u,  ū = Rᵀ·k,  v̄ = step·ū (+ D·g),
///   for a delta rule  β̄ = ū·(v - a·S'ᵀ·k),  v̄ = β·ū,  R -= k·v̄ᵀ,  k̄ -= a·S'·v̄;
///   ā = Σ R∘S',  step̄ = ū·v (0 for a delta rule) - e^A·a·ā,  Ā -= step·e^A·a·ā,  R ← a·R,
/// and dt̄ = step̄·σ(dt + dt_bias), 0 where a limit sets the step. With an A [H, N], ā is of each
/// row. Nothing is saved but the operands: states are computed again, first those before each
/// `block` of tokens, then those of a block at a time.  Inputs: g, then q, k, v, dt, dt_bias, A,
/// beta and D as in StateScan. Outputs: q̄, k̄, v̄, dt̄ (whose sum is that of dt_bias), Ā of each
/// sequence [batch, H or H, N], of a delta rule β̄, with `skips` D̄ of each sequence [batch, H].
/// Work: see work.cpp; of each token and head 17·N·P FLOPs, 6 of them for states, or for a delta
/// rule 23 and 8. Kernels that go back in chunks of 256 do 0.8 of that for N 128 and P 64.
/// Sources: state-spaces/mamba, ssd_combined.py, which also saves no states; Yang et al. 2024
/// (arXiv:2412.06464), section 3.
struct StateScanGradient {
  static constexpr OpTraits traits{"state_scan_gradient", RateClass::StateScan};
  static constexpr std::size_t block = 64;
  StateScan forward;
  /// Heads with the same q and k are summed in so many parts, which threads share out.
  std::uint64_t num_parts() const {
    const std::uint64_t heads = forward.num_heads / forward.num_groups;
    return heads < 8 ? heads : 8;
  }
  bool operator==(const StateScanGradient&) const = default;
};

/// The gradient of sinks [H], -Σ p_sink·δ over the rows, δ = Σ g∘p = Σ g∘o.
/// Inputs: of a Softmax the probabilities p [batch, H, queries, keys] and g; of a TiledAttention g
/// and o [batch, queries, H·vd], l as in its gradient, and the sinks; so far.
/// Work: 3 FLOPs an element of p and 3 a row; 2 an element of o and 4 a row and head.
struct SinkGradient {
  static constexpr OpTraits traits{"sink_gradient", RateClass::Vector};
  bool of_probabilities = false;
  bool operator==(const SinkGradient&) const = default;
};

/// Features first ... of each head, which JoinHeads has put there: [batch, rows, H·all] -> [batch,
/// rows, H·n], or of rows that all heads share their sum [batch, rows, n].
/// Work: 1 FLOP an element that is summed.
struct SplitHeads {
  static constexpr OpTraits traits{"split_heads", RateClass::Vector};
  std::uint64_t num_heads = 1;
  std::uint64_t first = 0;
  bool sums = false;
  bool operator==(const SplitHeads&) const = default;
};

/// x as the features first ... of rows that are 0 elsewhere: [batch, rows, n] -> [batch, rows,
/// all], the adjoint of SliceFeatures.
struct PlaceFeatures {
  static constexpr OpTraits traits{"place_features", RateClass::Vector};
  std::uint64_t first = 0;
  bool operator==(const PlaceFeatures&) const = default;
};

/// The gradient of an embedding's table: row ids[b,t] is the sum of all such rows of g, other rows
/// are 0. Of a part of the table from `first_row` on, ids of other parts add nothing, unless they
/// stand for row 0.
/// Inputs: g [batch, tokens, features], ids [batch, tokens], so far; output [rows, features].
/// Work: 1 FLOP an element of g; rows of g are added to rows that are read and written, and without
/// `so far` the output is cleared before.
struct ScatterAdd {
  static constexpr OpTraits traits{"scatter_add", RateClass::Vector};
  std::uint64_t first_row = 0;
  bool first_for_unknown = false;  ///< as Embedding's
  bool operator==(const ScatterAdd&) const = default;
};

/// loss = weight·scale·Σ (lse - x[target] + z·lse²) over rows with a target, lse the logarithm of
/// the row's Σ exp(x); and its gradient weight·scale·(softmax(x)·(1 + 2·z·lse) - [v = target]).
/// Rows whose target is below 0 count nothing, and their gradient is 0.
/// Of a device's part of the vocabulary: the loss is that of rows whose target is in it, and the
/// gradient that of the part.
/// Inputs: x [..., vocabulary], targets [...], scale [1] (one over the targets of a whole step), of
/// a part LogSumExp of all parts [..., parts]; outputs: the gradient of x, and the loss [1].
/// Work: 5 FLOPs an element of x and 6 a row, 6 more with a z, also of rows without a target; 2.
/// Of a part 3 an element of its columns, 4 a row and part, and 5 a row.
struct CrossEntropy {
  static constexpr OpTraits traits{"cross_entropy", RateClass::Vector};
  double weight = 1;
  double z = 0;               ///< of the z-loss; 0: none
  std::uint64_t first = 0;    ///< of a part: the token of its first column
  std::uint64_t columns = 0;  ///< of a part: those that are tokens; the others' gradient is 0
  bool operator==(const CrossEntropy&) const = default;
};

/// The logarithm of each row's Σ exp(x) over its first columns.
/// Inputs: x [..., features]; output [..., 1].  Work: 4 FLOPs an element of these, and 2 a row.
struct LogSumExp {
  static constexpr OpTraits traits{"log_sum_exp", RateClass::Vector};
  std::uint64_t columns = 0;
  bool operator==(const LogSumExp&) const = default;
};

/// loss = c·Σ |x - y|, c = weight·scale/features, and its gradient for x, c·sign(x - y), 0 at 0.
/// Inputs: x and y [..., features], scale [1] (one over the rows of a whole step); outputs: the
/// gradient of x, and the loss [1].  Work: 4 FLOPs an element, and 3.
struct MeanAbsoluteError {
  static constexpr OpTraits traits{"mean_absolute_error", RateClass::Vector};
  double weight = 1;
  bool operator==(const MeanAbsoluteError&) const = default;
};

/// Σ x².  Inputs: x; output [1].  Work: 2 FLOPs an element.
struct SumOfSquares {
  static constexpr OpTraits traits{"sum_of_squares", RateClass::Vector};
};

/// The factor that clips a gradient to a norm: c = min(1, most/(norm + 1e-6)), norm² = Σ of the
/// inputs after the first.  Inputs: AdamW's settings with `most` in the place of c, and Σ g² [1] of
/// every weight's gradient; outputs: the settings, and the norm [1].  Work: 1 FLOP an input after
/// the first, and 4.  Source: PyTorch, torch/nn/utils/clip_grad.py.
struct ClipFactor {
  static constexpr OpTraits traits{"clip_factor", RateClass::Vector};
};

/// A step of AdamW: with c·g the clipped gradient,  m ← β₁m + (1-β₁)cg,  v ← β₂v + (1-β₂)(cg)²,
/// w ← (1 - lr·decay)·w - lr·m̂/(√v̂ + eps), m̂ and v̂ without their bias towards 0.
/// Inputs: w, g, m, v, and [lr, 1/(1-β₁^t), 1/(1-β₂^t), c]; outputs, in the inputs' places: w, m,
/// v; and, of weights that are also kept in a narrower type, w in that. Work: 15 FLOPs an element,
/// 1 more with a decay, and 2. Source: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2.
struct AdamW {
  static constexpr OpTraits traits{"adamw", RateClass::Vector};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  bool operator==(const AdamW&) const = default;
};

}  // namespace kvcast
