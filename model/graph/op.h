/// The operators of all graphs.
///
/// `Op` is a closed variant: a new operator does not compile until every interpreter (work, cost,
/// simulation, execution) handles it.
#pragma once

#include <string_view>
#include <variant>

#include "model/graph/forward_op.h"
#include "model/graph/gradient_op.h"

namespace kvcast {

using Op = std::variant<
    Embedding, Linear, HeadLinear, AttentionScores, AttentionValues, SparseValues, ChooseKeys,
    TiledAttention, LargestProbability, Softmax, Elementwise, GatedActivation, RowMean, RmsNorm,
    LayerNorm, Rope, RopeAngles, RotateHalf, ScaleByPosition, Route, ExpertLinear, CombineExperts,
    MixStreams, JoinHeads, SliceFeatures, CacheAppend, CacheEvict, JoinRows, SplitRows, Send,
    Receive, Collective, DispatchTokens, ReturnTokens, RepeatHeads, LastToken, KeepTokens,
    GatherRows, DropTokens, MissingTokens, TokenRows, TokenStates, StoreStates, TokenMask,
    FirstSeen, Conv1d, CausalConv, StateScan, RelativePositionBias, AlibiBias, CausalMask,
    DropoutMask, WeightGradient, SumRepeats, SumHeads, SpreadMean, TransposedValues,
    TiledAttentionGradient, ElementwiseGradient, XieluWeightGradient, GatedActivationGradient,
    SoftmaxGradient, RmsNormGradient, LayerNormGradient, NormWeightGradient, ExpertInputGradient,
    ExpertWeightGradient, ExpertBiasGradient, CombineExpertsGradient, RouteGradient,
    MixStreamsGradient, CausalConvWeightGradient, StateScanGradient, SinkGradient, SplitHeads,
    PlaceFeatures, ScatterAdd, CrossEntropy, LogSumExp, MeanAbsoluteError, SumOfSquares, ClipFactor,
    AdamW>;

/// "linear", "tiled_attention", ...; an element-wise operator has its function's name.
std::string_view name(const Op& op);
RateClass rate_class(const Op& op);

template <typename... Ops>
bool is_any(const Op& op) {
  return (std::holds_alternative<Ops>(op) || ...);
}
/// Of products with the weights of experts, forward or back; null for other operators.
const ExpertLinear* experts_of(const Op& op);
/// From one rank to another.
inline bool is_message(const Op& op) { return is_any<Send, Receive>(op); }
/// Its group, where the operator exchanges messages within one.
const RankGroup* group_of(const Op& op);

}  // namespace kvcast
