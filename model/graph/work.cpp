#include "model/graph/work.h"

#include <tuple>

namespace kvcast {
namespace {

std::size_t slot(Storage storage) { return static_cast<std::size_t>(storage); }

/// The input of a TiledAttentionGradient that is its bias, or the keys that it attends to, if it is
/// there.
std::size_t bias_of_gradient(const TiledAttention& forward) {
  return forward.values_are_keys ? 5 : 6;
}

/// The work of one node, by its operator.
class OpWork {
 public:
  OpWork(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  Work operator()(const Embedding&) const { return rows_of_first(); }
  Work operator()(const Linear&) const { return product(1); }
  Work operator()(const HeadLinear& op) const {
    const std::vector<Count>& weight = input(1).shape;
    const Count block = weight[0].scaled(1, static_cast<std::int64_t>(op.num_blocks));
    return traffic(2 * op.num_heads * output().rows() * block * weight[1]);
  }
  Work operator()(const AttentionScores& op) const {
    return traffic(2 * output().elements() * op.heads.head_dim);
  }
  Work operator()(const AttentionValues& op) const {
    return traffic(2 * input(0).elements() * op.heads.head_dim);
  }
  Work operator()(const SparseValues& op) const {
    return traffic((2 * op.heads.head_dim + 1) * input(0).elements() +
                   rotation(op.unrotate, op.rope_heads, input(1).rows()));
  }
  Work operator()(const ChooseKeys& op) const {
    const Count& batch = input(0).shape[0];
    const Count& head_dim = input(1).shape.back();
    Work w;
    w.flops = batch * op.visible_pairs * op.num_heads * (2 * head_dim + 3);
    read(w, 0, input(0).elements());
    read(w, 1, batch * op.visible_keys * head_dim);
    read(w, 2, input(2).elements());
    write(w, output().elements());
    return w;
  }
  Work operator()(const TiledAttention& op) const {
    const Count batch = op.has_first ? Count(1) : input(0).shape[0];
    const Count keys = batch * op.visible_keys;
    const std::size_t inputs = num_inputs() - (op.has_first ? 1 : 0);
    const bool has_bias = inputs > 3 && !op.has_sinks && op.kept == 0;
    const std::uint64_t per_pair = 2 * op.heads.head_dim + 2 * op.value_heads().head_dim + 4 +
                                   (op.scale != 1 ? 1 : 0) + (has_bias ? 1 : 0) +
                                   (op.softcap > 0 ? 3 : 0);
    Work w;
    w.flops = batch * op.visible_pairs * op.heads.num_attention_heads * per_pair +
              output().elements() + rotation(op.key_rope, op.heads.num_key_value_heads, keys);
    if (op.has_sinks) {
      w.flops += 4 * op.heads.num_attention_heads * output().rows();
      read(w, inputs - 1, op.heads.num_attention_heads);
    }
    if (op.has_first) read(w, inputs, input(inputs).elements());
    if (op.kept > 0) read(w, num_inputs() - 1, batch * op.visible_pairs);
    read(w, 0, input(0).elements());
    read(w, 1, keys * input(1).shape.back());
    if (!op.values_are_keys) read(w, 2, keys * input(2).shape.back());
    if (has_bias) {
      const std::vector<Count>& bias = input(3).shape;
      const bool by_query = bias[1] == input(0).shape[1];
      read(w, 3, bias[0] * (by_query ? op.visible_pairs : op.visible_keys));
    }
    write(w, output().elements());
    if (node_.outputs.size() > 1) w.flops += 2 * graph_.tensor(node_.outputs[1]).elements();
    write_others(w);
    return w;
  }
  Work operator()(const LargestProbability& op) const {
    return traffic((op.pool > 0 ? op.pool + 2 : 1) * input(0).elements());
  }
  Work operator()(const KeepTokens&) const { return traffic(input(0).elements()); }
  Work operator()(const GatherRows&) const { return rows_of_first(); }
  Work operator()(const DropTokens&) const { return traffic(); }
  Work operator()(const MissingTokens&) const { return traffic(); }
  Work operator()(const TokenRows&) const { return rows_of_first(); }
  Work operator()(const TokenStates&) const {
    const std::vector<Count>& shape = output().shape;
    const Count last = shape[0] * shape[2];
    Work w;
    read(w, 0, output().elements() - last);
    read(w, 1, input(1).elements());
    read(w, 2, last);
    read(w, 3, input(3).elements());
    write(w, output().elements());
    return w;
  }
  Work operator()(const StoreStates&) const {
    const std::vector<Count>& shape = input(2).shape;
    const Count elements = shape[0] * (shape[1] - 1) * shape[2];
    Work w = moved(2, elements);
    read(w, 1, input(1).elements());
    read(w, 3, input(3).elements());
    return w;
  }
  Work operator()(const TokenMask&) const { return traffic(); }
  Work operator()(const FirstSeen&) const { return traffic(); }
  Work operator()(const Softmax&) const {
    Work w = traffic(5 * output().elements());
    if (num_inputs() > 1) w.flops += 4 * output().rows();
    return w;
  }
  Work operator()(const Elementwise& op) const {
    Work w = traffic(flops_per_element(op.function) * output().elements());
    if (op.function == Function::Xielu) w.flops += 7;
    return w;
  }
  Work operator()(const GatedActivation& op) const {
    const std::uint64_t per_element = op.limit > 0 ? 11 : flops_per_element(op.function) + 1;
    Work w = traffic(per_element * output().elements());
    if (op.cutoff) w.flops += 6 * output().elements() + 4 * output().rows();
    return w;
  }
  Work operator()(const RowMean&) const { return traffic(input(0).elements()); }
  Work operator()(const RmsNorm& op) const {
    const std::uint64_t per_element = num_inputs() > 1 ? 4 : 3;
    Work w = traffic(per_element * output().elements() + 3 * op.groups * output().rows());
    if (op.unit_offset) w.flops += input(1).elements();
    write_others(w);
    return w;
  }
  Work operator()(const LayerNorm& op) const {
    const std::uint64_t per_element = 5 + (num_inputs() - 1);
    Work w = traffic(per_element * output().elements() + 4 * op.groups * output().rows());
    write_others(w);
    return w;
  }
  Work operator()(const Rope& op) const {
    return traffic(rotation(op.table, op.num_heads, output().rows()));
  }
  Work operator()(const RopeAngles&) const { return traffic(2 * output().elements()); }
  Work operator()(const RotateHalf&) const { return traffic(output().elements()); }
  Work operator()(const ScaleByPosition&) const { return traffic(output().elements()); }
  Work operator()(const Route& op) const {
    const TensorInfo& weights = graph_.tensor(node_.outputs[1]);
    const Routing& g = op.routing;
    const Count logits = input(0).elements();
    Work w = traffic();
    if (g.score == Routing::Score::Softmax) w.flops += 5 * logits;
    if (g.score == Routing::Score::Sigmoid) w.flops += 4 * logits;
    if (g.score == Routing::Score::SoftmaxOfBest) w.flops += 5 * weights.elements();
    if (g.score == Routing::Score::SoftmaxOfNear) {
      w.flops += 5 * g.num_experts_per_tok * logits + weights.elements();
    }
    if (num_inputs() > 1) w.flops += logits;
    if (g.normalizes) w.flops += 2 * weights.elements();
    if (g.weight_scale != 1) w.flops += weights.elements();
    write_others(w);
    return w;
  }
  Work operator()(const ExpertLinear& op) const {
    Work w;
    w.flops = 2 * output().elements() * input(2).shape[1];
    read(w, 0, input(0).elements());
    read(w, 1, input(1).elements());
    for (std::size_t i = 2; i < num_inputs(); ++i) read(w, i, of_distinct(op, input(i)));
    if (num_inputs() > 3) w.flops += output().elements();
    write(w, output().elements());
    return w;
  }
  Work operator()(const CombineExperts&) const {
    return traffic((num_inputs() > 1 ? 2 : 1) * input(0).elements());
  }
  Work operator()(const MixStreams& op) const {
    const std::uint64_t streams = node_.outputs.size();
    const TensorInfo& one = graph_.tensor(node_.outputs[0]);
    Work w;
    for (std::size_t i = 0; i < num_inputs(); ++i) read(w, i, input(i).elements());
    w.written[slot(one.storage)] += streams * one.bytes();
    w.flops = 2 * op.num_mixed * streams * one.elements();
    return w;
  }
  Work operator()(const JoinHeads&) const { return traffic(); }
  Work operator()(const SliceFeatures&) const { return moved(0, output().elements()); }
  Work operator()(const CacheAppend&) const { return moved(1, input(1).elements()); }
  Work operator()(const CacheEvict& op) const {
    const std::vector<Count>& shape = output().shape;
    return moved(0, shape[0] * op.moved * shape[2]);
  }
  Work operator()(const JoinRows&) const { return traffic(); }
  Work operator()(const SplitRows&) const {
    Work w = traffic();
    write_others(w);
    return w;
  }
  Work operator()(const Send&) const { return moved(0, output().elements()); }
  Work operator()(const Receive&) const {
    const std::size_t message = num_inputs() - 1;
    return moved(message, input(message).elements());
  }
  Work operator()(const RepeatHeads&) const { return traffic(); }
  Work operator()(const LastToken&) const { return moved(0, output().elements()); }
  Work operator()(const Conv1d& op) const { return product(op.kernel); }
  Work operator()(const CausalConv& op) const {
    return traffic((2 * op.kernel + (num_inputs() > 2 ? 1 : 0)) * output().elements());
  }
  Work operator()(const StateScan& op) const {
    const TensorInfo& state = graph_.tensor(node_.outputs[1]);
    const Count& batch = output().shape[0];
    const std::uint64_t heads = op.num_heads;
    const std::uint64_t key_dim = input(0).shape.back().constant() / op.num_groups;
    const std::uint64_t value_dim = output().shape.back().constant() / heads;
    const Count tokens = output().rows() * heads;
    const Count pairs = batch * op.pairs;
    const Count earlier = pairs - output().rows();  // j < i
    Work w = traffic();
    w.written[slot(state.storage)] += state.bytes();
    const Count limits = op.num_limits() * op.limited.value_or(output().rows()) * heads;
    if (decays_by_row()) {
      // e^A; of each token softplus of dt + dt_bias, u, D·v; and of each row of S its decay, S, y.
      w.flops = input(5).elements() + tokens * (5 + value_dim + (op.skips ? 2 * value_dim : 0));
      w.flops += tokens * key_dim * (2 + 5 * value_dim) + limits;
      return w;
    }
    // Of each head: e^A; of each token softplus of dt + dt_bias, the decay, its sum, e^c.
    w.flops = Count(heads) + 8 * tokens + limits;
    // Sᵀq and its decay; u; e^(c_n-c_j)·u_j and its product with k_j.
    w.flops += tokens * (2 * key_dim * value_dim + value_dim);
    w.flops += tokens * (op.delta ? 2 * key_dim * value_dim + 3 * value_dim : value_dim);
    w.flops += tokens * (2 + value_dim + 2 * key_dim * value_dim);
    if (op.skips) w.flops += tokens * (2 * value_dim);
    w.flops += batch * op.chunks * (heads * (2 + key_dim * value_dim));  // e^(c_n)·S
    // Products of q and k once for each group; their decay, and the sum over u.
    w.flops += pairs * (op.num_groups * 2 * key_dim + heads * (3 + 2 * value_dim));
    if (op.delta) {
      w.flops += earlier * (op.num_groups * 2 * key_dim + heads * (3 + 2 * value_dim));
    }
    return w;
  }
  Work operator()(const Collective& op) const {
    Work w = traffic();
    const Count rows = input(0).rows();
    const std::uint64_t width = input(0).shape.back().constant();
    const std::uint64_t others = op.group.size - 1;
    const auto message = [&](const Count& sent, const Count& received) {
      w.read[slot(Storage::Messages)] += bytes_of(received, output().dtype);
      w.written[slot(Storage::Messages)] += bytes_of(sent, output().dtype);
    };
    if (op.kind == CollectiveKind::AllReduce) {
      // The member's features of the sum.
      const std::uint64_t own = member_part(width, op.group.size, op.member).size;
      w.flops = rows * (own * others);
      message(rows * (width - own + own * others), rows * (own * others + width - own));
    } else if (op.kind == CollectiveKind::ReduceScatter) {
      const Count all = input(0).elements();
      const Count own = output().elements();
      w.flops = own * others;
      message(all - own, own * others);
    } else {
      const Count own = input(0).elements();
      message(own * others, output().elements() - own);
    }
    return w;
  }
  Work operator()(const DispatchTokens& op) const {
    Work w;
    const Count& features = input(0).shape.back();
    read(w, 1, input(1).elements());
    read(w, 2, input(2).elements());
    const Count pairs = mean(op.pairs, op.layers);
    read(w, 0, pairs * features);
    for (const TensorId id : node_.outputs) {
      const TensorInfo& out = graph_.tensor(id);
      w.written[slot(out.storage)] += out.bytes();
    }
    if (op.group.size == 1) return w;
    // A token with the numbers and weights of its K experts.
    const Count chosen = input(1).shape.back();
    const auto bytes = [&](Symbol tokens) {
      const Count n = mean(tokens, op.layers);
      return bytes_of(n * features, op.sent_as) + bytes_of(n * chosen, input(1).dtype) +
             bytes_of(n * chosen, input(2).dtype);
    };
    w.written[slot(Storage::Messages)] += bytes(op.sent);
    w.read[slot(Storage::Messages)] += bytes(op.received);
    return w;
  }
  Work operator()(const ReturnTokens& op) const {
    Work w = traffic();
    w.flops = (num_inputs() > 2 ? 2 : 1) * input(0).elements();
    if (op.group.size == 1) return w;
    const Count& features = input(0).shape.back();
    const Count received = mean(op.received, op.layers) * features;
    w.flops += received;
    w.written[slot(Storage::Messages)] +=
        bytes_of(mean(op.sent, op.layers) * features, output().dtype);
    w.read[slot(Storage::Messages)] += bytes_of(received, output().dtype);
    return w;
  }
  Work operator()(const RelativePositionBias&) const { return traffic(); }
  Work operator()(const AlibiBias&) const { return traffic(2 * output().elements()); }
  Work operator()(const CausalMask&) const { return traffic(); }
  Work operator()(const DropoutMask&) const { return traffic(); }

  Work operator()(const WeightGradient& op) const {
    const auto blocks = static_cast<std::int64_t>(op.num_blocks);
    return traffic(2 * op.num_heads * input(0).rows() * output().elements().scaled(1, blocks));
  }
  Work operator()(const SumRepeats&) const { return traffic(input(0).elements()); }
  Work operator()(const SumHeads&) const { return traffic(input(0).elements()); }
  Work operator()(const SpreadMean&) const { return traffic(output().elements()); }
  Work operator()(const TransposedValues& op) const {
    return traffic(2 * op.heads.head_dim * input(0).elements());
  }
  Work operator()(const TiledAttentionGradient& op) const {
    const TiledAttention& f = op.forward;
    const Count& batch = input(0).shape[0];
    const Count keys = batch * f.visible_keys;
    const bool has_bias = num_inputs() > bias_of_gradient(f) && f.kept == 0;
    const std::uint64_t per_pair = 6 * f.heads.head_dim + 4 * f.value_heads().head_dim + 4 +
                                   (f.scale != 1 ? 2 : 0) + (f.softcap > 0 ? 6 : 0) +
                                   (has_bias ? 1 : 0);
    Work w;
    w.flops =
        batch * f.visible_pairs * f.heads.num_attention_heads * per_pair + 2 * input(1).elements();
    for (std::size_t i = 0; i < 4; ++i) read(w, i, input(i).elements());
    read(w, 4, keys * input(4).shape.back());
    if (!f.values_are_keys) read(w, 5, keys * input(5).shape.back());
    if (has_bias) {
      const std::vector<Count>& bias = input(bias_of_gradient(f)).shape;
      const bool by_query = bias[1] == input(0).shape[1];
      read(w, bias_of_gradient(f), bias[0] * (by_query ? f.visible_pairs : f.visible_keys));
    }
    if (f.kept > 0) read(w, bias_of_gradient(f), batch * f.visible_pairs);
    write(w, output().elements());
    write_others(w);
    return w;
  }
  Work operator()(const ElementwiseGradient& op) const {
    Work w = traffic(gradient_flops_per_element(op.function) * output().elements());
    if (op.function == Function::Xielu) w.flops += 8;
    return w;
  }
  Work operator()(const XieluWeightGradient& op) const {
    return traffic((op.of_negative ? 6 : 4) * input(0).elements() + 6);
  }
  Work operator()(const GatedActivationGradient& op) const {
    const Function f = op.forward.function;
    const std::uint64_t per_element =
        op.forward.limit > 0 ? 20 : flops_per_element(f) + gradient_flops_per_element(f) + 2;
    Work w = traffic(per_element * output().elements());
    if (op.forward.cutoff) w.flops += 10 * output().elements() + 7 * output().rows();
    write_others(w);
    return w;
  }
  Work operator()(const SoftmaxGradient&) const { return traffic(4 * output().elements()); }
  Work operator()(const RmsNormGradient& op) const {
    const bool has_weight = num_inputs() > 3;
    Work w =
        traffic((has_weight ? 7 : 6) * output().elements() + op.forward.groups * output().rows());
    if (has_weight && op.forward.unit_offset) w.flops += input(3).elements();
    return w;
  }
  Work operator()(const LayerNormGradient& op) const {
    return traffic((num_inputs() > 3 ? 10 : 9) * output().elements() +
                   2 * op.forward.groups * output().rows());
  }
  Work operator()(const NormWeightGradient& op) const {
    return traffic((op.centers ? 4 : 3) * input(0).elements());
  }
  Work operator()(const ExpertInputGradient& op) const {
    Work w;
    w.flops = 2 * input(0).elements() * input(2).shape[1];
    for (std::size_t i = 0; i < 2; ++i) read(w, i, input(i).elements());
    read(w, 2, of_distinct(op.forward, input(2)));
    write(w, output().elements());
    return w;
  }
  Work operator()(const ExpertWeightGradient&) const {
    return traffic(2 * input(0).elements() * output().shape[1]);
  }
  Work operator()(const ExpertBiasGradient&) const { return traffic(input(0).elements()); }
  Work operator()(const CombineExpertsGradient&) const {
    if (num_inputs() == 1) return traffic();
    Work w = traffic(3 * output().elements());
    write_others(w);
    return w;
  }
  Work operator()(const RouteGradient& op) const {
    const Routing& g = op.routing;
    const Count weights = input(2).elements();
    const bool of_all = g.score == Routing::Score::Softmax;
    const bool of_near = g.score == Routing::Score::SoftmaxOfNear;
    Work w;
    if (of_all) w.flops = 7 * output().elements() + 2 * weights;
    if (g.score == Routing::Score::SoftmaxOfBest) w.flops = 9 * weights;
    if (g.score == Routing::Score::Sigmoid) w.flops = 7 * weights;
    if (of_near) w.flops = 7 * g.num_experts_per_tok * output().elements() + 4 * weights;
    if (g.normalizes) w.flops += 5 * weights + output().rows();
    if (g.weight_scale != 1) w.flops += weights;
    read(w, 0, of_all || of_near ? output().elements() : weights);
    for (std::size_t i = 1; i < 3; ++i) read(w, i, input(i).elements());
    write(w, output().elements());
    return w;
  }
  Work operator()(const MixStreamsGradient& op) const {
    const std::uint64_t streams = num_inputs() - 1 - op.num_mixed;
    Work w = traffic(4 * streams * op.num_mixed * output().elements());
    write_others(w);
    return w;
  }
  Work operator()(const CausalConvWeightGradient&) const {
    return traffic(2 * output().shape.back() * input(0).elements());
  }
  Work operator()(const StateScanGradient& op) const {
    const StateScan& f = op.forward;
    const Count& decay = input(6).elements();
    const std::uint64_t key_dim = input(1).shape.back().constant() / f.num_groups;
    const std::uint64_t value_dim = input(3).shape.back().constant() / f.num_heads;
    const std::uint64_t rows = input(6).shape.size() > 1 ? key_dim : 1;  // with a decay each
    const std::uint64_t delta = f.delta ? 1 : 0;
    const std::uint64_t skips = f.skips ? 1 : 0;
    // Of a token and head: S twice, R and its decay, q̄, k̄, ū, ā, and those of a delta rule.
    const std::uint64_t of_states = (17 + 6 * delta) * key_dim * value_dim;
    // Sums of q̄ and k̄ over heads; u, v̄, step̄ or β̄; D.
    const std::uint64_t of_vectors =
        (2 + 2 * delta) * key_dim + (4 + 2 * delta + 4 * skips) * value_dim;
    // Steps, their slopes; and decays, there and back.
    const std::uint64_t of_steps = 10 + f.num_limits() + 7 * rows;
    Work w = traffic(input(0).rows() * f.num_heads * (of_states + of_vectors + of_steps) + decay +
                     2 * op.num_parts() * input(1).elements());
    write_others(w);
    return w;
  }
  Work operator()(const SinkGradient& op) const {
    if (op.of_probabilities) return traffic(3 * input(0).elements() + 3 * input(0).rows());
    return traffic(2 * input(1).elements() + 4 * input(2).elements());
  }
  Work operator()(const SplitHeads& op) const {
    const Count moved_elements = (op.sums ? op.num_heads : 1) * output().elements();
    Work w;
    if (op.sums) w.flops = moved_elements;
    read(w, 0, moved_elements);
    write(w, output().elements());
    return w;
  }
  Work operator()(const PlaceFeatures&) const { return traffic(); }
  Work operator()(const ScatterAdd&) const {
    const Count added = input(0).elements();
    const bool clears = num_inputs() < 3;
    Work w;
    w.flops = added;
    read(w, 0, added);
    read(w, 1, input(1).elements());
    w.read[slot(output().storage)] += bytes_of(added, output().dtype);
    write(w, added + (clears ? output().elements() : Count()));
    return w;
  }
  Work operator()(const CrossEntropy& op) const {
    if (num_inputs() > 3) {
      const Count rows = output().rows();
      Work w;
      w.flops = rows * (3 * op.columns + (op.z > 0 ? 11 : 5)) + 4 * input(3).elements() + 2;
      read(w, 0, rows * op.columns);
      for (std::size_t i = 1; i < num_inputs(); ++i) read(w, i, input(i).elements());
      write(w, output().elements());
      write_others(w);
      return w;
    }
    Work w = traffic(5 * output().elements() + (op.z > 0 ? 12 : 6) * output().rows() + 2);
    write_others(w);
    return w;
  }
  Work operator()(const LogSumExp& op) const {
    Work w;
    w.flops = output().rows() * (4 * op.columns + 2);
    read(w, 0, output().rows() * op.columns);
    write(w, output().elements());
    return w;
  }
  Work operator()(const MeanAbsoluteError&) const {
    Work w = traffic(4 * output().elements() + 3);
    write_others(w);
    return w;
  }
  Work operator()(const SumOfSquares&) const { return traffic(2 * input(0).elements()); }
  Work operator()(const ClipFactor&) const {
    Work w = traffic(num_inputs() + 3);
    write_others(w);
    return w;
  }
  Work operator()(const AdamW& op) const {
    Work w = traffic((op.weight_decay > 0 ? 16 : 15) * output().elements());
    if (op.weight_decay > 0) w.flops += 2;
    write_others(w);
    return w;
  }

 private:
  /// Of a StateScan.
  bool decays_by_row() const { return input(5).shape.size() > 1; }
  std::size_t num_inputs() const { return node_.inputs.size(); }
  const TensorInfo& input(std::size_t i) const { return graph_.tensor(node_.inputs[i]); }
  const TensorInfo& output() const { return graph_.tensor(node_.output()); }
  void read(Work& w, std::size_t i, const Count& elements) const {
    w.read[slot(input(i).storage)] += bytes_of(elements, input(i).dtype);
  }
  void write(Work& w, const Count& elements) const {
    w.written[slot(output().storage)] += bytes_of(elements, output().dtype);
  }

  /// Of a weight of experts, what a mean layer reads.
  static Count of_distinct(const ExpertLinear& op, const TensorInfo& weight) {
    const auto blocks = static_cast<std::int64_t>(op.num_experts * op.layers);
    return (Count(op.distinct) * weight.elements()).scaled(1, blocks);
  }

  /// All results but the first.
  void write_others(Work& w) const {
    for (std::size_t i = 1; i < node_.outputs.size(); ++i) {
      const TensorInfo& t = graph_.tensor(node_.outputs[i]);
      w.written[slot(t.storage)] += t.bytes();
    }
  }

  /// Of a symbol that counts all layers, one layer's.
  static Count mean(Symbol all, std::uint64_t layers) {
    return Count(all).scaled(1, static_cast<std::int64_t>(layers));
  }

  /// All inputs are read once and the output is written once.
  Work traffic(const Count& flops = {}) const {
    Work w;
    w.flops = flops;
    for (std::size_t i = 0; i < num_inputs(); ++i) read(w, i, input(i).elements());
    write(w, output().elements());
    return w;
  }
  /// So many elements of one input are read, and written to the output.
  Work moved(std::size_t from, const Count& elements) const {
    Work w;
    read(w, from, elements);
    write(w, elements);
    return w;
  }
  /// The output's rows of the first input are read, and the other inputs in full.
  Work rows_of_first() const {
    Work w = moved(0, output().elements());
    for (std::size_t i = 1; i < num_inputs(); ++i) read(w, i, input(i).elements());
    return w;
  }
  /// A product with a weight, `taps` rows of the input for each of the output; a third input is a
  /// bias.
  Work product(std::uint64_t taps) const {
    Work w = traffic(2 * output().elements() * input(0).shape.back() * taps);
    if (num_inputs() > 2) w.flops += output().elements();
    return w;
  }
  /// FLOPs of rotating the heads of so many rows; none without a table.
  static Count rotation(const std::shared_ptr<const RopeTable>& table, std::uint64_t num_heads,
                        const Count& rows) {
    if (!table) return {};
    return rows * (6 * num_heads) * table->inverse_frequencies.size();
  }

  const Graph& graph_;
  const Node& node_;
};

Count triangle(const Count& n) { return (n * n + n).scaled(1, 2); }

/// Σ_{i=1..n} min(i, window); window 0: no limit.
Count clipped_triangle(const Count& n, std::uint64_t window, Symbols& symbols) {
  if (window == 0) return triangle(n);
  const Count m = symbols.minimum(n, window);
  return triangle(m) + (n - m) * window;
}

/// Σ_{i=0..n-1} (i mod chunk + 1)
Count chunked_triangles(const Count& n, std::uint64_t chunk, Symbols& symbols) {
  const Count whole = symbols.whole_chunks(n, chunk);
  return whole.scaled(static_cast<std::int64_t>(chunk + 1), 2) + triangle(n - whole);
}

}  // namespace

Count Work::bytes() const {
  Count sum;
  for (const Count& c : read) sum += c;
  for (const Count& c : written) sum += c;
  return sum;
}

const Count& Work::sent_bytes() const { return written[slot(Storage::Messages)]; }
const Count& Work::received_bytes() const { return read[slot(Storage::Messages)]; }

Work& Work::operator+=(const Work& other) {
  flops += other.flops;
  for (std::size_t i = 0; i < num_storages; ++i) {
    read[i] += other.read[i];
    written[i] += other.written[i];
  }
  return *this;
}

bool operator<(const Work& a, const Work& b) {
  return std::tie(a.flops, a.read, a.written) < std::tie(b.flops, b.read, b.written);
}

bool works_in_place(const Op& op) {
  return is_any<Elementwise, GatedActivation, Softmax, Rope, SumRepeats, ElementwiseGradient,
                GatedActivationGradient, SoftmaxGradient, CrossEntropy, MeanAbsoluteError>(op);
}

RateClass rate_class(const Graph& graph, const Node& node) {
  const bool decodes = is_any<TiledAttention, StateScan, ChooseKeys>(node.op) &&
                       graph.tensor(node.inputs[0]).shape[1] == Count(1);
  if (decodes) return RateClass::DecodeAttention;
  // A decay of each row leaves no products of matrices.
  const auto decays_by_row = [&](std::size_t input) {
    return graph.tensor(node.inputs[input]).shape.size() > 1;
  };
  const bool by_row = (is_any<StateScan>(node.op) && decays_by_row(5)) ||
                      (is_any<StateScanGradient>(node.op) && decays_by_row(6));
  return by_row ? RateClass::Vector : rate_class(node.op);
}

Work work(const Graph& graph, const Node& node) { return std::visit(OpWork(graph, node), node.op); }

Work total_work(const Graph& graph) {
  Work sum;
  for (const Node& node : graph.nodes()) sum += work(graph, node);
  return sum;
}

Count visible_pairs(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols) {
  if (!mask.causal) return queries * keys;
  if (queries == Count(1)) return visible_keys(mask, queries, keys, symbols);
  // Sums are taken in the order of symbols, so that is made here and not left to the compiler.
  const auto triangles = [&](const Count& n) {
    return mask.chunk > 0 ? chunked_triangles(n, mask.chunk, symbols)
                          : clipped_triangle(n, mask.window, symbols);
  };
  const Count of_past = triangles(mask.past);
  return triangles(mask.past + queries) - of_past;
}

Count visible_keys(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols) {
  if (!mask.causal) return keys;
  const Count before = mask.past + queries;  // no query sees the keys after the last one
  if (mask.chunk > 0) return before - symbols.whole_chunks(mask.past, mask.chunk);
  if (mask.window == 0) return before;
  return symbols.minimum(before, queries + mask.window - 1);
}

}  // namespace kvcast
