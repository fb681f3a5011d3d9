/// The operators of training at speed. Sums go in an order that depends on the sizes alone: the
/// results are the same on any number of threads.
#pragma once

#include "model/execute/operand.h"

namespace kvcast::execute {

void run_gradient(const Call& call, const WeightGradient& op);
void run_gradient(const Call& call, const SumRepeats& op);
void run_gradient(const Call& call, const SumHeads& op);
void run_gradient(const Call& call, const SpreadMean& op);
void run_gradient(const Call& call, const TransposedValues& op);
void run_gradient(const Call& call, const TiledAttentionGradient& op);  // tiled_gradient.cpp
void run_gradient(const Call& call, const ElementwiseGradient& op);
void run_gradient(const Call& call, const XieluWeightGradient& op);
void run_gradient(const Call& call, const CausalConvWeightGradient& op);
void run_gradient(const Call& call, const GatedActivationGradient& op);
void run_gradient(const Call& call, const SoftmaxGradient& op);
void run_gradient(const Call& call, const RmsNormGradient& op);
void run_gradient(const Call& call, const LayerNormGradient& op);
void run_gradient(const Call& call, const NormWeightGradient& op);
void run_gradient(const Call& call, const ExpertInputGradient& op);
void run_gradient(const Call& call, const ExpertWeightGradient& op);
void run_gradient(const Call& call, const ScatterAdd& op);
void run_gradient(const Call& call, const CrossEntropy& op);
void run_gradient(const Call& call, const LogSumExp& op);
void run_gradient(const Call& call, const MeanAbsoluteError& op);
void run_gradient(const Call& call, const SumOfSquares& op);
void run_gradient(const Call& call, const ClipFactor& op);
void run_gradient(const Call& call, const AdamW& op);

template <typename O>
constexpr bool has_gradient_kernel = requires(const Call& call, const O& op) {
  run_gradient(call, op);
};

}  // namespace kvcast::execute
