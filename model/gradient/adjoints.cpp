#include "model/gradient/adjoints.h"

#include <memory>
#include <string>
#include <utility>

#include "model/base/error.h"
#include "model/base/wide_dtype.h"

namespace kvcast {
namespace {

/// True where the second operand of an Elementwise is not repeated.
bool same_size(const TensorInfo& x, const TensorInfo& y) { return x.elements() == y.elements(); }

[[noreturn]] void refuse(const Node& node, const std::string& what) {
  throw Error("training: " + place(node) + ": " + what +
              " has no gradient; expected a model without it");
}

/// The adjoint of one operator.
class Adjoint {
 public:
  Adjoint(Backward& back, const Node& node, const std::vector<TensorId>& gradients)
      : back_(back), node_(node), g_(gradients.front()), gradients_(gradients) {}

  void operator()(const Linear& op) {
    KVCAST_ASSERT(!op.transposed);
    if (active(0)) {
      back_.contribute(in(0), add(Linear{true}, "input_gradient", {g_, value(1)}, in(0)));
    }
    if (active(1)) {
      back_.accumulate(in(1), WeightGradient{}, "weight_gradient", {g_, value(0)});
    }
    if (has(2) && active(2)) sum_into(2, g_);
  }

  void operator()(const HeadLinear& op) {
    HeadLinear back = op;
    back.transposed = !op.transposed;
    if (active(0)) back_.contribute(in(0), add(back, "input_gradient", {g_, value(1)}, in(0)));
    if (!active(1)) return;
    std::vector<TensorId> factors{g_, value(0)};
    if (op.transposed) std::swap(factors[0], factors[1]);
    back_.accumulate(in(1), WeightGradient{op.num_heads, op.num_blocks}, "weight_gradient",
                     std::move(factors));
  }

  void operator()(const Embedding& op) {
    back_.accumulate(in(0), ScatterAdd{op.first_row, op.first_for_unknown}, "weight_gradient",
                     {g_, value(1)});
  }

  void operator()(const AttentionScores& op) {
    if (active(0)) {
      back_.contribute(in(0),
                       add(AttentionValues{op.heads}, "query_gradient", {g_, value(1)}, in(0)));
    }
    if (active(1)) {
      back_.contribute(in(1),
                       add(TransposedValues{op.heads}, "key_gradient", {g_, value(0)}, in(1)));
    }
  }

  void operator()(const AttentionValues& op) {
    if (active(0)) {
      back_.contribute(
          in(0), add(AttentionScores{op.heads}, "probability_gradient", {g_, value(1)}, in(0)));
    }
    if (active(1)) {
      back_.contribute(in(1),
                       add(TransposedValues{op.heads}, "value_gradient", {value(0), g_}, in(1)));
    }
  }

  void operator()(const TiledAttention& op) {
    if (op.has_first) refuse(node_, "an attention over tokens that are not consecutive");
    if (op.key_rope) refuse(node_, "an attention that rotates keys as it reads them");
    const bool has_bias = has(3) && !op.has_sinks && op.kept == 0;
    if (has_bias && active(3)) refuse(node_, "a trained bias of scores");
    std::vector<TensorId> inputs{g_, value(node_.outputs[0]), saved(), value(0), value(1)};
    std::vector<TensorId> like{in(0), in(1)};
    if (!op.values_are_keys) {
      inputs.push_back(value(2));
      like.push_back(in(2));
    }
    if (has_bias || op.kept > 0) inputs.push_back(value(3));
    const std::vector<TensorId> gradients =
        back_.add(TiledAttentionGradient{op}, "gradient", std::move(inputs), like);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (active(i)) back_.contribute(in(i), gradients[i]);
    }
    if (!op.has_sinks || !back_.is_active(node_.inputs.back())) return;
    back_.accumulate(node_.inputs.back(), SinkGradient{false}, "sink_gradient",
                     {g_, value(node_.outputs[0]), saved(), value(node_.inputs.back())});
  }

  void operator()(const Softmax&) {
    const TensorId p = value(node_.outputs[0]);
    if (active(0)) back_.contribute(in(0), add(SoftmaxGradient{}, "gradient", {p, g_}, in(0)));
    if (has(1) && active(1)) {
      back_.accumulate(in(1), SinkGradient{true}, "sink_gradient", {p, g_});
    }
  }

  /// `g_` is that of the weights.
  void operator()(const Route& op) {
    back_.contribute(in(0), add(RouteGradient{op.routing}, "gradient",
                                {value(0), value(node_.outputs[0]), g_}, in(0)));
  }

  void operator()(const ExpertLinear& op) {
    if (active(0)) {
      back_.contribute(
          in(0), add(ExpertInputGradient{op}, "input_gradient", {g_, value(1), value(2)}, in(0)));
    }
    if (active(2)) {
      back_.accumulate(in(2), ExpertWeightGradient{op}, "weight_gradient",
                       {g_, value(0), value(1)});
    }
    if (has(3) && active(3)) {
      back_.accumulate(in(3), ExpertBiasGradient{op.num_experts_per_tok}, "sum", {g_, value(1)});
    }
  }

  void operator()(const CombineExperts& op) {
    const CombineExpertsGradient back{op.num_experts_per_tok};
    if (!has(1)) return back_.contribute(in(0), add(back, "gradient", {g_}, in(0)));
    const std::vector<TensorId> gradients =
        back_.add(back, "gradient", {g_, value(0), value(1)}, std::vector<TensorId>{in(0), in(1)});
    for (std::size_t i = 0; i < 2; ++i) {
      if (active(i)) back_.contribute(in(i), gradients[i]);
    }
  }

  void operator()(const MixStreams& op) {
    const std::size_t n = op.num_mixed;
    const bool onto_mixed = node_.inputs.size() == n + 1;
    std::vector<TensorId> inputs = gradients_;
    std::vector<TensorId> like;
    for (std::size_t j = 0; j < n; ++j) {
      inputs.push_back(value(j));
      like.push_back(in(j));
    }
    inputs.push_back(value(node_.inputs.back()));
    like.push_back(node_.inputs.back());
    const std::vector<TensorId> made =
        back_.add(MixStreamsGradient{n, onto_mixed}, "gradient", std::move(inputs), like);
    for (std::size_t j = 0; j < made.size(); ++j) {
      if (back_.is_active(like[j])) back_.contribute(like[j], made[j]);
    }
    for (std::size_t i = 0; !onto_mixed && i < gradients_.size(); ++i) {
      if (active(n + i)) back_.contribute(in(n + i), gradients_[i]);
    }
  }

  void operator()(const CausalConv& op) {
    if (back_.info(in(0)).shape != back_.info(node_.outputs[0]).shape) {
      refuse(node_, "a convolution that begins behind earlier tokens");
    }
    CausalConv back = op;
    back.transposed = true;
    if (active(0)) back_.contribute(in(0), add(back, "input_gradient", {g_, value(1)}, in(0)));
    if (active(1)) {
      back_.accumulate(in(1), CausalConvWeightGradient{}, "weight_gradient", {g_, value(0)});
    }
    if (has(2) && active(2)) sum_into(2, g_);
  }

  void operator()(const StateScan& op) {
    const std::size_t operands = node_.inputs.size() - 1;  // without the state
    if (!back_.info(in(operands)).rows().is_zero()) refuse(node_, "a state of earlier tokens");
    std::vector<TensorId> inputs{g_};
    for (std::size_t i = 0; i < operands; ++i) inputs.push_back(value(i));
    std::vector<TensorInfo> results;
    const auto add_like = [&](std::size_t i) {
      const TensorInfo& t = back_.info(in(i));
      results.push_back({"", t.shape, t.dtype, Storage::Activations, {}});
    };
    // Sums over a sequence.
    const auto add_sums = [&](std::size_t i) {
      std::vector<Count> shape = back_.info(in(i)).shape;
      shape.insert(shape.begin(), back_.info(in(0)).shape[0]);
      const DType dtype = wide_dtype(back_.info(node_.outputs[0]).dtype);
      results.push_back({"", std::move(shape), dtype, Storage::Activations, {}});
    };
    for (std::size_t i = 0; i < 4; ++i) add_like(i);
    add_sums(5);
    if (op.delta) add_like(6);
    if (op.skips) add_sums(operands - 1);
    const std::vector<TensorId> made =
        back_.add_results(StateScanGradient{op}, "gradient", std::move(inputs), std::move(results));
    for (std::size_t i = 0; i < 4; ++i) {
      if (active(i)) back_.contribute(in(i), made[i]);
    }
    if (active(4)) sum_into(4, made[3]);
    if (active(5)) sum_into(5, made[4]);
    if (op.delta && active(6)) back_.contribute(in(6), made[5]);
    if (op.skips && active(operands - 1)) sum_into(operands - 1, made.back());
  }

  void operator()(const JoinHeads& op) {
    const std::uint64_t first = back_.info(in(0)).shape.back().constant() / op.num_heads;
    if (active(0)) {
      back_.contribute(in(0), add(SplitHeads{op.num_heads, 0}, "gradient", {g_}, in(0)));
    }
    if (active(1)) {
      const SplitHeads back{op.num_heads, first, op.shared};
      back_.contribute(in(1), add(back, "gradient", {g_}, in(1)));
    }
  }

  /// Of a sum, `g_` is the same on all devices; of gathered rows, a part of a sum (gradient.cpp).
  void operator()(const Collective& op) {
    const bool is_gather = op.kind == CollectiveKind::AllGather;
    if (op.kind == CollectiveKind::AllReduce) return back_.contribute(in(0), g_);
    if (op.of_rows) {
      Collective back = op;
      back.kind = is_gather ? CollectiveKind::ReduceScatter : CollectiveKind::AllGather;
      return back_.contribute(in(0), add(back, "gradient", {g_}, in(0)));
    }
    if (!is_gather || node_.layer != no_layer) {
      throw Error("training: layer " + std::to_string(node_.layer) + ", " + node_.label,
                  "features of all devices in the middle of a layer", "tp 1");
    }
    const std::uint64_t own = back_.info(in(0)).shape.back().constant();
    back_.contribute(in(0), add(SliceFeatures{op.member * own}, "gradient", {g_}, in(0)));
  }

  /// Of a stage of a pipeline: to the one before.
  void operator()(const Receive& op) {
    const TensorInfo& message = back_.info(in(0));
    back_.add_results(Send{op.rank, 0}, "gradient", {g_},
                      {{"", message.shape, message.dtype, Storage::Messages, {}}});
  }

  void operator()(const SliceFeatures& op) {
    back_.contribute(in(0), add(PlaceFeatures{op.first}, "gradient", {g_}, in(0)));
  }

  void operator()(const SplitRows&) {
    back_.contribute(in(0), add(JoinRows{}, "gradient", gradients_, in(0)));
  }

  void operator()(const Elementwise& op) {
    switch (op.function) {
      case Function::Xielu:
        if (active(0)) {
          back_.contribute(in(0), add(ElementwiseGradient{op.function}, "gradient",
                                      {value(0), g_, value(1), value(2)}, in(0)));
        }
        for (const std::size_t i : {1U, 2U}) {
          if (!active(i)) continue;
          back_.accumulate(in(i), XieluWeightGradient{i == 2}, "weight_gradient",
                           {g_, value(0), value(i)});
        }
        return;
      case Function::Copy: return back_.contribute(in(0), copied(g_, in(0)));
      case Function::OnePlus: return back_.contribute(in(0), g_);
      case Function::Scale: return back_.contribute(in(0), add(op, "gradient", {g_}, in(0)));
      case Function::Add:
        if (active(0)) back_.contribute(in(0), g_);
        if (active(1)) sum_into(1, g_);
        return;
      case Function::Center:
        if (active(0)) back_.contribute(in(0), g_);
        if (active(1)) {
          const Elementwise negative{Function::Scale, -1};
          sum_into(1, add(negative, "gradient", {g_}, node_.outputs[0]));
        }
        return;
      case Function::Multiply:
        if (active(0)) back_.contribute(in(0), add(op, "gradient", {g_, value(1)}, in(0)));
        if (active(1)) {
          sum_into(1, add(op, "factor_gradient", {g_, value(0)}, node_.outputs[0]));
        }
        return;
      default: break;
    }
    const TensorId kept = saves_result(op.function) ? node_.outputs[0] : in(0);
    back_.contribute(in(0), add(ElementwiseGradient{op.function, op.parameter}, "gradient",
                                {value(kept), g_}, in(0)));
  }

  void operator()(const GatedActivation& op) {
    const std::vector<TensorId> gradients =
        back_.add(GatedActivationGradient{op}, "gradient", {value(0), value(1), g_},
                  std::vector<TensorId>{in(0), in(1)});
    for (std::size_t i = 0; i < 2; ++i) {
      if (active(i)) back_.contribute(in(i), gradients[i]);
    }
  }

  void operator()(const RowMean&) {
    back_.contribute(in(0), add(SpreadMean{}, "gradient", {g_}, in(0)));
  }

  void operator()(const RmsNorm& op) {
    norm(RmsNormGradient{op}, NormWeightGradient{false, op.groups});
  }
  void operator()(const LayerNorm& op) {
    norm(LayerNormGradient{op}, NormWeightGradient{true, op.groups});
    if (has(2) && active(2)) sum_into(2, g_);
  }

  void operator()(const Rope& op) {
    // The inverse divides by the gain, the adjoint multiplies by it.
    Rope back = op;
    back.inverse = !op.inverse;
    if (op.table->gain != 1) {
      auto table = std::make_shared<RopeTable>(*op.table);
      table->gain = 1 / table->gain;
      back.table = std::move(table);
    }
    std::vector<TensorId> inputs{g_};
    if (has(1)) inputs.push_back(value(1));
    back_.contribute(in(0), back_.add(std::move(back), "gradient", std::move(inputs), in(0)));
  }

  void operator()(const RotateHalf& op) {
    // The transpose of a quarter turn is its negative.
    const TensorId turned = add(op, "gradient", {g_}, in(0));
    back_.contribute(in(0), add(Elementwise{Function::Scale, -1}, "gradient", {turned}, in(0)));
  }

  void operator()(const ScaleByPosition& op) {
    std::vector<TensorId> inputs{g_};
    if (has(1)) inputs.push_back(value(1));
    back_.contribute(in(0), back_.add(op, "gradient", std::move(inputs), in(0)));
  }

  void operator()(const RepeatHeads& op) {
    back_.contribute(in(0), add(SumHeads{op.repeats, op.head_dim}, "gradient", {g_}, in(0)));
  }

  template <typename O>
  void operator()(const O& /*op*/) {
    refuse(node_, std::string(name(node_.op)));
  }

 private:
  TensorId in(std::size_t i) const { return node_.inputs[i]; }
  bool has(std::size_t i) const { return i < node_.inputs.size(); }
  bool active(std::size_t i) const { return back_.is_active(in(i)); }
  TensorId value(std::size_t i) { return back_.value(in(i)); }
  TensorId value(TensorId id) { return back_.value(id); }
  TensorId saved() { return back_.saved(); }
  TensorId add(Op op, std::string_view what, std::vector<TensorId> inputs, TensorId like) {
    return back_.add(std::move(op), what, std::move(inputs), like);
  }

  /// In the shape and type of a forward tensor.
  TensorId copied(TensorId gradient, TensorId like) {
    const TensorInfo& from = back_.gradient_info(gradient);
    const TensorInfo& to = back_.info(like);
    if (from.shape == to.shape && from.dtype == to.dtype) return gradient;
    return add(Elementwise{Function::Copy}, "gradient", {gradient}, like);
  }

  /// Of operand i, over which the result repeats it.
  void sum_into(std::size_t i, TensorId gradient) {
    if (back_.info(in(i)).storage == Storage::Weights) {
      return back_.accumulate(in(i), SumRepeats{}, "sum", {gradient});
    }
    const bool whole = same_size(back_.gradient_info(gradient), back_.info(in(i)));
    back_.contribute(in(i),
                     whole ? copied(gradient, in(i)) : add(SumRepeats{}, "sum", {gradient}, in(i)));
  }

  void norm(Op of_input, Op of_weight) {
    if (active(0)) {
      std::vector<TensorId> inputs{g_, value(0), saved()};
      if (has(1)) inputs.push_back(value(1));
      back_.contribute(in(0),
                       back_.add(std::move(of_input), "input_gradient", std::move(inputs), in(0)));
    }
    if (!has(1) || !active(1)) return;
    back_.accumulate(in(1), std::move(of_weight), "weight_gradient", {g_, value(0), saved()});
  }

  Backward& back_;
  const Node& node_;
  TensorId g_;  ///< of the only result, or the first of several
  const std::vector<TensorId>& gradients_;
};

}  // namespace

std::vector<TensorId> results_with_gradient(const Node& node) {
  if (is_any<MixStreams, SplitRows>(node.op)) return node.outputs;
  return {node.outputs[is_any<Route>(node.op) ? 1 : 0]};
}

void record_adjoint(Backward& back, const Node& node, const std::vector<TensorId>& gradients) {
  std::visit(Adjoint(back, node, gradients), node.op);
}

std::optional<TensorInfo> saved_result(const Graph& forward, const Node& node) {
  std::vector<Count> shape = forward.tensor(node.inputs[0]).shape;
  if (const auto* attention = std::get_if<TiledAttention>(&node.op)) {
    shape.back() = attention->heads.num_attention_heads;
  } else if (const auto* rms = std::get_if<RmsNorm>(&node.op)) {
    shape.back() = rms->groups;
  } else if (const auto* norm = std::get_if<LayerNorm>(&node.op)) {
    shape.back() = 2 * norm->groups;
  } else {
    return {};
  }
  const DType wide = wide_dtype(forward.tensor(node.output()).dtype);
  return TensorInfo{"", std::move(shape), wide, Storage::Activations, {}};
}

}  // namespace kvcast
