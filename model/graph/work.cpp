#include "model/graph/work.h"

#include <tuple>

namespace kvcast {
namespace {

std::size_t slot(Storage storage) { return static_cast<std::size_t>(storage); }

/// The operands of one node, by position.
class Operands {
 public:
  Operands(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}
  std::size_t num_inputs() const { return node_.inputs.size(); }
  const TensorInfo& input(std::size_t i) const { return graph_.tensor(node_.inputs[i]); }
  const TensorInfo& output() const { return graph_.tensor(node_.output()); }

  /// Reads all inputs once and writes the output once; FLOPs are left to the caller.
  Work traffic() const {
    Work w;
    for (std::size_t i = 0; i < num_inputs(); ++i) read(w, i, input(i).elements());
    write(w, output().elements());
    return w;
  }
  void read(Work& w, std::size_t i, const Count& elements) const {
    w.read[slot(input(i).storage)] += bytes_of(elements, input(i).dtype);
  }
  void write(Work& w, const Count& elements) const {
    w.written[slot(output().storage)] += bytes_of(elements, output().dtype);
  }

 private:
  const Graph& graph_;
  const Node& node_;
};

/// Elements of all dimensions but the last: the number of rows.
Count rows(const TensorInfo& t) {
  Count product = 1;
  for (std::size_t i = 0; i + 1 < t.shape.size(); ++i) product = product * t.shape[i];
  return product;
}

struct OpWork {
  const Operands& operands;

  Work operator()(const Embedding&) const {
    Work w;  // one table row for each id
    operands.read(w, 0, operands.output().elements());
    operands.read(w, 1, operands.input(1).elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const Linear&) const {
    Work w = operands.traffic();
    w.flops = 2 * operands.output().elements() * operands.input(0).shape.back();
    if (operands.num_inputs() > 2) w.flops += operands.output().elements();
    return w;
  }
  Work operator()(const HeadLinear& op) const {
    const std::vector<Count>& weight = operands.input(1).shape;
    const Count block = weight[0].scaled(1, static_cast<std::int64_t>(op.num_blocks));
    Work w = operands.traffic();
    w.flops = 2 * op.num_heads * rows(operands.output()) * block * weight[1];
    return w;
  }
  Work operator()(const AttentionScores& op) const {
    Work w = operands.traffic();
    w.flops = 2 * operands.output().elements() * op.heads.head_dim;
    return w;
  }
  Work operator()(const AttentionValues& op) const {
    Work w = operands.traffic();
    w.flops = 2 * operands.input(0).elements() * op.heads.head_dim;
    return w;
  }
  Work operator()(const SparseValues& op) const {
    Work w = operands.traffic();
    w.flops = (2 * op.heads.head_dim + 1) * operands.input(0).elements();
    if (op.unrotate) {
      const std::uint64_t pairs = op.unrotate->inverse_frequencies.size();
      w.flops += rows(operands.input(1)) * checked_product(6 * op.rope_heads, pairs);
    }
    return w;
  }
  Work operator()(const TiledAttention& op) const {
    const Count& batch = operands.input(0).shape[0];
    const std::uint64_t bias_flops = operands.num_inputs() > 3 ? 1 : 0;
    const std::uint64_t scale_flops = op.scale != 1 ? 1 : 0;
    const std::uint64_t softcap_flops = op.softcap > 0 ? 3 : 0;
    const std::uint64_t per_pair = 2 * op.heads.head_dim + 2 * op.value_heads().head_dim + 4 +
                                   scale_flops + bias_flops + softcap_flops;
    Work w;
    w.flops = batch * op.visible_pairs * checked_product(op.heads.num_attention_heads, per_pair) +
              operands.output().elements();
    if (op.key_rope) {
      const std::uint64_t pairs = op.key_rope->inverse_frequencies.size();
      w.flops += batch * op.visible_keys * checked_product(6 * op.heads.num_key_value_heads, pairs);
    }
    operands.read(w, 0, operands.input(0).elements());
    operands.read(w, 1, batch * op.visible_keys * operands.input(1).shape.back());
    if (!op.values_are_keys) {
      operands.read(w, 2, batch * op.visible_keys * operands.input(2).shape.back());
    }
    if (operands.num_inputs() > 3) {
      const std::vector<Count>& bias = operands.input(3).shape;
      const bool by_query = bias[1] == operands.input(0).shape[1];
      operands.read(w, 3, bias[0] * (by_query ? op.visible_pairs : op.visible_keys));
    }
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const LargestProbability& op) const {
    Work w = operands.traffic();
    w.flops = (op.pool > 0 ? op.pool + 2 : 1) * operands.input(0).elements();
    return w;
  }
  Work operator()(const KeepTokens&) const {
    Work w = operands.traffic();
    w.flops = operands.input(0).elements();
    return w;
  }
  Work operator()(const GatherRows&) const {
    Work w;
    operands.read(w, 0, operands.output().elements());
    operands.read(w, 1, operands.input(1).elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const DropTokens&) const { return operands.traffic(); }
  Work operator()(const MissingTokens&) const { return operands.traffic(); }
  Work operator()(const TokenRows&) const {
    Work w;
    operands.read(w, 0, operands.output().elements());
    operands.read(w, 1, operands.input(1).elements());
    operands.read(w, 2, operands.input(2).elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const TokenStates&) const {
    const std::vector<Count>& shape = operands.output().shape;
    const Count last = shape[0] * shape[2];
    Work w;
    operands.read(w, 0, operands.output().elements() - last);
    operands.read(w, 1, operands.input(1).elements());
    operands.read(w, 2, last);
    operands.read(w, 3, operands.input(3).elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const StoreStates&) const {
    const std::vector<Count>& shape = operands.input(2).shape;
    const Count elements = shape[0] * (shape[1] - 1) * shape[2];
    Work w;
    operands.read(w, 1, operands.input(1).elements());
    operands.read(w, 2, elements);
    operands.read(w, 3, operands.input(3).elements());
    operands.write(w, elements);
    return w;
  }
  Work operator()(const TokenMask&) const { return operands.traffic(); }
  Work operator()(const Softmax&) const { return with_flops_per_element(5); }
  Work operator()(const Elementwise& op) const {
    return with_flops_per_element(flops_per_element(op.function));
  }
  Work operator()(const GatedActivation& op) const {
    return with_flops_per_element(flops_per_element(op.function) + 1);
  }
  Work operator()(const RowMean&) const {
    Work w = operands.traffic();
    w.flops = operands.input(0).elements();
    return w;
  }
  Work operator()(const RmsNorm& op) const {
    Work w = operands.traffic();
    w.flops = 4 * operands.output().elements() + 3 * op.groups * rows(operands.output());
    if (op.unit_offset) w.flops += operands.input(1).elements();
    return w;
  }
  Work operator()(const LayerNorm&) const {
    Work w = operands.traffic();
    const std::uint64_t per_element = 5 + (operands.num_inputs() - 1);
    w.flops = per_element * operands.output().elements() + 4 * rows(operands.output());
    return w;
  }
  Work operator()(const Rope& op) const {
    Work w = operands.traffic();
    w.flops = 6 * op.num_heads * op.table->inverse_frequencies.size() * rows(operands.output());
    return w;
  }
  Work operator()(const RopeAngles&) const { return with_flops_per_element(2); }
  Work operator()(const RotateHalf&) const { return with_flops_per_element(1); }
  Work operator()(const CacheAppend&) const {
    Work w;
    operands.read(w, 1, operands.input(1).elements());
    operands.write(w, operands.input(1).elements());
    return w;
  }
  Work operator()(const CacheEvict& op) const {
    const std::vector<Count>& shape = operands.output().shape;
    const Count elements = shape[0] * op.moved * shape[2];
    Work w;
    operands.read(w, 0, elements);
    operands.write(w, elements);
    return w;
  }
  Work operator()(const JoinRows&) const { return operands.traffic(); }
  Work operator()(const Send&) const {
    Work w;
    operands.read(w, 0, operands.output().elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const Receive&) const {
    Work w;
    operands.read(w, 1, operands.input(1).elements());
    operands.write(w, operands.input(1).elements());
    return w;
  }
  Work operator()(const RepeatHeads&) const { return operands.traffic(); }
  Work operator()(const LastToken&) const {
    Work w;
    operands.read(w, 0, operands.output().elements());
    operands.write(w, operands.output().elements());
    return w;
  }
  Work operator()(const Conv1d& op) const {
    Work w = operands.traffic();
    w.flops = 2 * operands.output().elements() * operands.input(0).shape.back() * op.kernel;
    if (operands.num_inputs() > 2) w.flops += operands.output().elements();
    return w;
  }
  Work operator()(const RelativePositionBias&) const { return operands.traffic(); }
  Work operator()(const AlibiBias&) const { return with_flops_per_element(2); }
  Work operator()(const CausalMask&) const { return operands.traffic(); }

 private:
  Work with_flops_per_element(std::uint64_t flops) const {
    Work w = operands.traffic();
    w.flops = flops * operands.output().elements();
    return w;
  }
  static Count checked_product(std::uint64_t a, std::uint64_t b) { return Count(a) * Count(b); }
};

struct OpRateClass {
  RateClass operator()(const Linear&) const { return RateClass::Matrix; }
  RateClass operator()(const HeadLinear&) const { return RateClass::Matrix; }
  RateClass operator()(const Conv1d&) const { return RateClass::Matrix; }
  RateClass operator()(const AttentionScores&) const { return RateClass::BatchedMatrix; }
  RateClass operator()(const AttentionValues&) const { return RateClass::BatchedMatrix; }
  RateClass operator()(const SparseValues&) const { return RateClass::BatchedMatrix; }
  RateClass operator()(const TiledAttention&) const { return RateClass::TiledAttention; }
  RateClass operator()(const Embedding&) const { return RateClass::Vector; }
  RateClass operator()(const LargestProbability&) const { return RateClass::Vector; }
  RateClass operator()(const KeepTokens&) const { return RateClass::Vector; }
  RateClass operator()(const GatherRows&) const { return RateClass::Vector; }
  RateClass operator()(const DropTokens&) const { return RateClass::Vector; }
  RateClass operator()(const MissingTokens&) const { return RateClass::Vector; }
  RateClass operator()(const TokenRows&) const { return RateClass::Vector; }
  RateClass operator()(const TokenStates&) const { return RateClass::Vector; }
  RateClass operator()(const StoreStates&) const { return RateClass::Vector; }
  RateClass operator()(const TokenMask&) const { return RateClass::Vector; }
  RateClass operator()(const Softmax&) const { return RateClass::Vector; }
  RateClass operator()(const Elementwise&) const { return RateClass::Vector; }
  RateClass operator()(const RowMean&) const { return RateClass::Vector; }
  RateClass operator()(const RmsNorm&) const { return RateClass::Vector; }
  RateClass operator()(const LayerNorm&) const { return RateClass::Vector; }
  RateClass operator()(const Rope&) const { return RateClass::Vector; }
  RateClass operator()(const GatedActivation&) const { return RateClass::Vector; }
  RateClass operator()(const RopeAngles&) const { return RateClass::Vector; }
  RateClass operator()(const RotateHalf&) const { return RateClass::Vector; }
  RateClass operator()(const CacheAppend&) const { return RateClass::Vector; }
  RateClass operator()(const CacheEvict&) const { return RateClass::Vector; }
  RateClass operator()(const JoinRows&) const { return RateClass::Vector; }
  RateClass operator()(const Send&) const { return RateClass::Vector; }
  RateClass operator()(const Receive&) const { return RateClass::Vector; }
  RateClass operator()(const RepeatHeads&) const { return RateClass::Vector; }
  RateClass operator()(const LastToken&) const { return RateClass::Vector; }
  RateClass operator()(const RelativePositionBias&) const { return RateClass::Vector; }
  RateClass operator()(const AlibiBias&) const { return RateClass::Vector; }
  RateClass operator()(const CausalMask&) const { return RateClass::Vector; }
};

/// Σ_{i=1..n} min(i, window); window 0: no limit.
Count clipped_triangle(const Count& n, std::uint64_t window, Symbols& symbols) {
  if (window == 0) return (n * n + n).scaled(1, 2);
  const Count m = symbols.minimum(n, window);
  return (m * m + m).scaled(1, 2) + (n - m) * window;
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

RateClass rate_class(const Op& op) { return std::visit(OpRateClass{}, op); }

RateClass rate_class(const Graph& graph, const Node& node) {
  const bool decodes = std::holds_alternative<TiledAttention>(node.op) &&
                       graph.tensor(node.inputs[0]).shape[1] == Count(1);
  return decodes ? RateClass::DecodeAttention : rate_class(node.op);
}

Work work(const Graph& graph, const Node& node) {
  const Operands operands(graph, node);
  return std::visit(OpWork{operands}, node.op);
}

Work total_work(const Graph& graph) {
  Work sum;
  for (const Node& node : graph.nodes()) sum += work(graph, node);
  return sum;
}

Count visible_pairs(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols) {
  if (!mask.causal) return queries * keys;
  if (queries == Count(1)) return visible_keys(mask, queries, keys, symbols);
  return clipped_triangle(mask.past + queries, mask.window, symbols) -
         clipped_triangle(mask.past, mask.window, symbols);
}

Count visible_keys(const Mask& mask, const Count& queries, const Count& keys, Symbols& symbols) {
  if (!mask.causal) return keys;
  const Count before = mask.past + queries;  // the keys after the last query are seen by none
  if (mask.window == 0) return before;
  return symbols.minimum(before, queries + mask.window - 1);
}

}  // namespace kvcast
