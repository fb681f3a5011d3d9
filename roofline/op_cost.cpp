#include "roofline/op_cost.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "model/base/error.h"
#include "model/base/words.h"
#include "roofline/launches.h"

namespace kvcast::roofline {
namespace {

/// Of a product whose weight is narrower than the activations.
bool reads_narrow_weight(const Graph& graph, const Node& node, const Lowering& lowering) {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](TensorId id) {
    const TensorInfo& t = graph.tensor(id);
    return t.storage == Storage::Weights && t.shape.size() > 1 &&
           bits_per_element(t.dtype) < bits_per_element(lowering.operand_dtype());
  });
}

BandwidthClass bandwidth_class(RateClass runs_on, const Graph& graph, const Node& node,
                               const Lowering& lowering) {
  const Op& op = node.op;
  if (runs_on == RateClass::DecodeAttention) return BandwidthClass::Decode;
  if (runs_on == RateClass::TiledAttention) return BandwidthClass::Attention;
  if (experts_of(op) != nullptr) {
    const double bits = bits_per_element(graph.tensor(node.inputs[2]).dtype);
    const bool unpacked = bits < 8 && bits < bits_per_element(lowering.operand_dtype());
    return unpacked ? BandwidthClass::QuantizedExperts : BandwidthClass::Experts;
  }
  if (runs_on == RateClass::Matrix) {
    return reads_narrow_weight(graph, node, lowering) ? BandwidthClass::QuantizedProduct
                                                      : BandwidthClass::Product;
  }
  if (is_any<Softmax>(op)) return BandwidthClass::Softmax;
  if (is_any<CombineExperts>(op)) return BandwidthClass::CombineExperts;
  const bool eager = lowering.elementwise == Kernels::Eager || lowering.attention == Kernels::Eager;
  return eager && is_any<Elementwise, RowMean, RotateHalf, ElementwiseGradient, SumRepeats,
                         SumHeads, SpreadMean>(op)
             ? BandwidthClass::Elementwise
             : BandwidthClass::Memory;
}

Broadcast broadcast_of(const Graph& graph, const Node& node) {
  if (!std::holds_alternative<Elementwise>(node.op) || node.inputs.size() < 2) return {};
  const TensorInfo& x = graph.tensor(node.inputs[0]);
  const TensorInfo& y = graph.tensor(node.inputs[1]);
  // Missing leading dimensions are repeated as a whole; a broadcast within rows stays on chip.
  if (y.shape.size() >= x.shape.size() || y.shape.size() < 2) return {};
  Count times = 1;
  for (std::size_t i = 0; i < x.shape.size() - y.shape.size(); ++i) times = times * x.shape[i];
  return {y.bytes(), times};
}

/// The layers that read each cache tensor.
std::map<TensorId, std::set<int>> cache_readers(const Graph& graph) {
  std::map<TensorId, std::set<int>> readers;
  for (const Node& node : graph.nodes()) {
    if (std::holds_alternative<CacheAppend>(node.op)) continue;
    for (const TensorId id : node.inputs) {
      if (graph.tensor(id).storage == Storage::KvCache) readers[id].insert(node.layer);
    }
  }
  return readers;
}

Sharing sharing_of(const Node& node, const Work& work,
                   const std::map<TensorId, std::set<int>>& readers) {
  if (std::holds_alternative<CacheAppend>(node.op)) return {};
  std::size_t layers = 0;
  for (const TensorId id : node.inputs) {
    const auto found = readers.find(id);
    if (found == readers.end()) continue;
    if (found->second.size() < 2) return {};
    layers = layers == 0 ? found->second.size() : std::min(layers, found->second.size());
  }
  if (layers == 0) return {};
  return {work.read[static_cast<std::size_t>(Storage::KvCache)], layers};
}

/// Functions whose time is that of their exponential, wherever their operands are.
bool has_exponential(Function f) {
  return f == Function::SoftCap || f == Function::Silu || f == Function::Gelu ||
         f == Function::GeluTanh || f == Function::QuickGelu || f == Function::Sigmoid;
}

/// The operators that have OpCost::intermediate_bytes, whose time is that of moving numbers.
bool moves_intermediates(const Node& node, BandwidthClass moves_at, const Lowering& lowering) {
  if (is_any<AttentionScores, AttentionValues, TransposedValues>(node.op)) {
    return lowering.attention == Kernels::Eager;
  }
  const auto* elementwise = std::get_if<Elementwise>(&node.op);
  return moves_at == BandwidthClass::Elementwise &&
         (elementwise == nullptr || !has_exponential(elementwise->function));
}

/// The queries of a decode step: one, and the tokens that it takes back.
bool is_one_and_more(const Count& queries) {
  const auto terms = queries.terms();
  return std::any_of(terms.begin(), terms.end(),
                     [](const Count::Term& t) { return t.monomial.factors().empty(); });
}

/// See OpCost::length. Of experts: the rows of all layers' experts, which groups divides.
Count length_of(const Graph& graph, const Node& node) {
  if (const ExpertLinear* const experts = experts_of(node.op)) {
    return graph.tensor(node.inputs[0]).rows() * experts->num_experts_per_tok * experts->layers;
  }
  if (rate_class(graph, node) == RateClass::Matrix) {
    // Of a weight's gradient too, whose rows are summed over.
    return graph.tensor(is_any<WeightGradient>(node.op) ? node.inputs[0] : node.output()).rows();
  }
  const auto* attention = std::get_if<TiledAttention>(&node.op);
  if (const auto* back = std::get_if<TiledAttentionGradient>(&node.op)) attention = &back->forward;
  if (attention != nullptr) {
    const bool as_measured = attention->mask.causal && attention->mask.window == 0 &&
                             !is_one_and_more(graph.tensor(node.inputs[0]).shape[1]);
    return as_measured ? attention->visible_keys : Count();
  }
  if (!std::holds_alternative<Softmax>(node.op)) return {};
  const std::vector<Count>& shape = graph.tensor(node.output()).shape;
  return is_one_and_more(shape[shape.size() - 2]) ? Count() : shape.back();
}

bool same_operands(const Graph& graph, const Node& a, const Node& b) {
  const auto same_tensor = [&](TensorId i, TensorId j) {
    const TensorInfo& x = graph.tensor(i);
    const TensorInfo& y = graph.tensor(j);
    return x.dtype == y.dtype && x.storage == y.storage && x.shape == y.shape;
  };
  return a.op == b.op &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
                    same_tensor) &&
         std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(),
                    same_tensor);
}

bool reads_cache(const Graph& graph, const Node& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](TensorId id) { return graph.tensor(id).storage == Storage::KvCache; });
}

bool same_launch(const Graph& graph, const std::vector<std::size_t>& a,
                 const std::vector<std::size_t>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](std::size_t i, std::size_t j) {
    const Node& x = graph.nodes()[i];
    const Node& y = graph.nodes()[j];
    return x.label == y.label && same_operands(graph, x, y);
  });
}

/// The kernel that a launch of several operators is: a whole attention if it has scores and values.
RateClass launch_rate_class(const Graph& graph, const std::vector<std::size_t>& nodes,
                            RateClass of_main) {
  const auto has = [&](const auto& is) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](std::size_t i) { return is(graph.nodes()[i].op); });
  };
  const bool attends = has([](const Op& op) { return is_any<AttentionScores>(op); }) &&
                       has([](const Op& op) { return is_any<AttentionValues>(op); });
  if (!attends) return of_main;
  return is_decode_step(graph) ? RateClass::DecodeAttention : RateClass::TiledAttention;
}

/// The node of a launch whose kernel the others are fused into.
std::size_t main_node(const Graph& graph, const std::vector<std::size_t>& nodes) {
  const auto weight = [&](std::size_t i) {
    const Node& node = graph.nodes()[i];
    if (rate_class(graph, node) != RateClass::Vector) return 2;
    return std::holds_alternative<Softmax>(node.op) ? 1 : 0;
  };
  return *std::max_element(nodes.begin(), nodes.end(),
                           [&](std::size_t a, std::size_t b) { return weight(a) < weight(b); });
}

/// How many query heads share each cached head of an attention; 1 for other operators.
std::uint64_t heads_in_group(const Node& node) {
  const auto* attention = std::get_if<TiledAttention>(&node.op);
  if (attention == nullptr) return 1;
  return attention->heads.num_attention_heads / attention->heads.num_key_value_heads;
}

/// Fewer than 16 bits for a weight.
bool is_quantized(DType dtype) { return bits_per_element(dtype) < bits_per_element(DType::FP16); }

/// A product with weights of a prompt, which are converted to 16 bits first.
bool dequantizes(const Graph& graph, const Node& node, const Lowering& lowering) {
  return lowering.dequantizes_weights && std::holds_alternative<Linear>(node.op) &&
         is_quantized(graph.tensor(node.inputs[1]).dtype) && !is_decode_step(graph);
}

/// Of the weights of a product; none: it has none.
std::optional<DType> weight_dtype(const Graph& graph, const Node& node) {
  const bool grouped = std::holds_alternative<ExpertLinear>(node.op);
  if (!grouped && !std::holds_alternative<Linear>(node.op)) return {};
  return graph.tensor(node.inputs[grouped ? 2 : 1]).dtype;
}

/// See OpCost::stored_weights.
std::optional<DType> stored_weights(const Graph& graph, const Node& node,
                                    const Lowering& lowering) {
  const std::optional<DType> dtype = weight_dtype(graph, node);
  const bool narrow =
      dtype && bits_per_element(*dtype) < bits_per_element(lowering.operand_dtype());
  return narrow ? dtype : std::nullopt;
}

/// See OpCost::products. Operands are quantised for weights that are no wider.
std::optional<DType> other_products(const Graph& graph, const Node& node,
                                    const Lowering& lowering) {
  if (!is_quantized(lowering.operand_dtype()) || lowering.weights.is_uniform()) return {};
  const std::optional<DType> weights = weight_dtype(graph, node);
  if (!weights) return {};
  const DType own = product_dtype(lowering.operand_dtype(), *weights);
  const bool usual = own == product_dtype(lowering.operand_dtype(), lowering.weights.main);
  return usual ? std::nullopt : std::optional(own);
}

/// The kernels that convert what a launch reads and writes (Lowering::operands). What several of
/// its products read is converted once. And what PyTorch's softmax has beside itself
/// (aten/src/ATen/native/SoftMax.cpp, cuda/SoftMax.cu): bf16 is cast to fp32 first, fp16 on the
/// way; a gradient is first multiplied by the probabilities.
std::vector<OpGroup> conversions_of(const Graph& graph, const std::vector<std::size_t>& nodes,
                                    const Lowering& lowering) {
  std::vector<OpGroup> groups;
  const auto add = [&](const Node& node, const char* what, const Count& read,
                       const Count& written) {
    OpGroup g;
    g.phase = node.phase;
    g.label = node.label + "_" + what;
    g.op = conversion_name;
    g.count = 1;
    g.work.read[static_cast<std::size_t>(Storage::Activations)] = read;
    g.work.written[static_cast<std::size_t>(Storage::Activations)] = written;
    groups.push_back(std::move(g));
  };
  const bool decodes = is_decode_step(graph);
  std::set<TensorId> converted;
  for (const std::size_t i : nodes) {
    const Node& node = graph.nodes()[i];
    const bool is_product = std::holds_alternative<Linear>(node.op);
    if (dequantizes(graph, node, lowering)) {
      const TensorInfo& weight = graph.tensor(node.inputs[1]);
      add(node, "dequantize", weight.bytes(), bytes_of(weight.elements(), DType::FP16));
    }
    if (is_any<Softmax, SoftmaxGradient>(node.op) && lowering.elementwise == Kernels::Eager) {
      const TensorInfo& y = graph.tensor(node.output());
      const bool is_gradient = std::holds_alternative<SoftmaxGradient>(node.op);
      const bool widens = graph.tensor(node.inputs[0]).dtype == DType::BF16 &&
                          y.dtype == DType::FP32 && !is_gradient;
      if (is_gradient) add(node, "weigh", y.bytes() + y.bytes(), y.bytes());
      // The softmax itself then reads fp32, 2 bytes more than it is counted with.
      if (widens) add(node, "widen", y.bytes(), y.bytes());
    }
    if (!lowering.operands || (!is_product && !is_any<AttentionValues>(node.op))) continue;
    if (is_quantized(*lowering.operands)) continue;
    const TensorInfo& x = graph.tensor(node.inputs[0]);
    const TensorInfo& y = graph.tensor(node.output());
    const bool quantized = is_product && is_quantized(graph.tensor(node.inputs[1]).dtype) &&
                           (decodes || !lowering.dequantizes_weights);
    if (decodes && !quantized) continue;
    if (converted.insert(node.inputs[0]).second) {
      add(node, quantized ? "quantize" : "convert_input", x.bytes(),
          bytes_of(x.elements(), quantized ? DType::Q8_0 : *lowering.operands));
    }
    if (is_product && !quantized) {
      add(node, "convert_output", bytes_of(y.elements(), *lowering.operands), y.bytes());
    }
  }
  return groups;
}

/// What a node exchanges; none: nothing.
std::optional<CollectiveCall> collective_of(const Graph& graph, const Node& node) {
  const RankGroup* const group = kvcast::group_of(node.op);
  if (group == nullptr) return {};
  if (const auto* op = std::get_if<Collective>(&node.op)) {
    const bool gathers = op->kind == CollectiveKind::AllGather;
    return CollectiveCall{op->kind, *group,
                          graph.tensor(gathers ? node.output() : node.inputs[0]).bytes()};
  }
  // All of a device's buffer, with its own part. The fullest device, which the others wait for,
  // gets more rows than a usual one sends, and sends as many back.
  const Work w = work(graph, node);
  const Count bytes =
      std::holds_alternative<DispatchTokens>(node.op) ? w.received_bytes() : w.sent_bytes();
  return CollectiveCall{
      CollectiveKind::AllToAll, *group,
      (bytes * group->size).scaled(1, static_cast<std::int64_t>(group->size - 1))};
}

/// Without messages, and of a collective all of it: that is in its time.
Work work_on_device(const Graph& graph, const Node& node) {
  if (std::holds_alternative<Collective>(node.op)) return {};
  Work w = work(graph, node);
  if (kvcast::group_of(node.op) != nullptr) {
    w.read[static_cast<std::size_t>(Storage::Messages)] = {};
    w.written[static_cast<std::size_t>(Storage::Messages)] = {};
  }
  return w;
}

/// One launch of these nodes.
OpGroup group_of(const Graph& graph, const std::vector<std::size_t>& nodes,
                 const Lowering& lowering, const std::vector<std::size_t>& uses,
                 const std::map<TensorId, std::set<int>>& readers) {
  const Node& node = graph.nodes()[main_node(graph, nodes)];
  OpGroup g;
  g.phase = graph.nodes()[nodes.front()].phase;
  for (const std::size_t i : nodes) {
    g.label += (g.label.empty() ? "" : "+") + graph.nodes()[i].label;
  }
  g.op = name(node.op);
  g.rate_class = launch_rate_class(graph, nodes, rate_class(graph, node));
  g.bandwidth_class = bandwidth_class(g.rate_class, graph, node, lowering);
  const Work of_main = work_on_device(graph, node);
  g.collective = collective_of(graph, node);
  g.work = nodes.size() == 1 ? of_main : launch_work(graph, nodes, uses);
  const std::uint64_t heads = heads_in_group(node);
  const bool read_once =
      std::find(lowering.groups_read_once.begin(), lowering.groups_read_once.end(), heads) !=
      lowering.groups_read_once.end();
  if (lowering.reads_groups_again && !read_once && g.rate_class == RateClass::DecodeAttention) {
    g.reread_bytes = g.work.read[static_cast<std::size_t>(Storage::KvCache)] * (heads - 1);
  }
  for (const std::size_t i : nodes) {
    if (!dequantizes(graph, graph.nodes()[i], lowering)) continue;
    const TensorInfo& weight = graph.tensor(graph.nodes()[i].inputs[1]);
    g.work.read[static_cast<std::size_t>(Storage::Weights)] +=
        bytes_of(weight.elements(), DType::FP16) - weight.bytes();
  }
  g.broadcast = broadcast_of(graph, node);
  g.sharing = sharing_of(node, of_main, readers);
  if (nodes.size() == 1 && moves_intermediates(node, g.bandwidth_class, lowering)) {
    constexpr auto activations = static_cast<std::size_t>(Storage::Activations);
    g.intermediate_bytes = g.work.read[activations] + g.work.written[activations];
  }
  g.length = length_of(graph, node);
  if (const ExpertLinear* const experts = experts_of(node.op)) {
    g.groups = experts->distinct;
    g.measured_loads = experts->measured_loads;
  }
  g.products = other_products(graph, node, lowering);
  g.stored_weights = stored_weights(graph, node, lowering);
  g.count = 1;
  return g;
}

}  // namespace

std::string_view name(Bound bound) {
  static constexpr Words<Bound, num_bounds> bounds = {{{Bound::Compute, "compute"},
                                                       {Bound::Memory, "memory"},
                                                       {Bound::Link, "link"},
                                                       {Bound::Latency, "latency"}}};
  return word_for(bound, bounds);
}

FoldedGraph fold_nodes(const Graph& graph, const Lowering& lowering) {
  FoldedGraph folded;
  std::vector<OpGroup>& groups = folded.groups;
  folded.group_of_node.assign(graph.nodes().size(), no_group);
  struct Known {
    const std::vector<std::size_t>* nodes;
    std::size_t group;
    std::size_t conversions;  ///< groups behind it
  };
  std::map<std::pair<std::string_view, std::string_view>, std::vector<Known>> by_label;
  const std::map<TensorId, std::set<int>> readers = cache_readers(graph);
  const std::vector<std::size_t> uses = uses_of(graph);
  const std::vector<std::vector<std::size_t>> launches = launches_of(graph, lowering);
  for (const std::vector<std::size_t>& nodes : launches) {
    const Node& first = graph.nodes()[nodes.front()];
    std::vector<Known>& known = by_label[{first.phase, first.label}];
    // One operator's work follows from its operands, but for what it shares with other layers.
    const bool is_alone = nodes.size() == 1 && !reads_cache(graph, first);
    std::optional<OpGroup> group;
    if (!is_alone) group = group_of(graph, nodes, lowering, uses, readers);
    const auto alike = std::find_if(known.begin(), known.end(), [&](const Known& k) {
      return same_launch(graph, *k.nodes, nodes) &&
             (is_alone ||
              (groups[k.group].sharing == group->sharing && groups[k.group].work == group->work));
    });
    const bool is_new = alike == known.end();
    folded.group_of_node[nodes.front()] = is_new ? groups.size() : alike->group;
    if (!is_new) {
      for (std::size_t i = 0; i <= alike->conversions; ++i) ++groups[alike->group + i].count;
      continue;
    }
    std::vector<OpGroup> conversions = conversions_of(graph, nodes, lowering);
    known.push_back({&nodes, groups.size(), conversions.size()});
    if (!group) group = group_of(graph, nodes, lowering, uses, readers);
    groups.push_back(std::move(*group));
    std::move(conversions.begin(), conversions.end(), std::back_inserter(groups));
  }
  return folded;
}

std::vector<OpGroup> fold(const Graph& graph, const Lowering& lowering) {
  return fold_nodes(graph, lowering).groups;
}

Work total_work(const std::vector<OpGroup>& groups) {
  Work sum;
  for (const OpGroup& g : groups) {
    sum.flops += g.work.flops * g.count;
    for (std::size_t i = 0; i < num_storages; ++i) {
      sum.read[i] += g.work.read[i] * g.count;
      sum.written[i] += g.work.written[i] * g.count;
    }
  }
  return sum;
}

std::map<OpCost, std::uint64_t> merge(const std::vector<OpGroup>& groups) {
  std::map<OpCost, std::uint64_t> merged;
  for (const OpGroup& g : groups) merged[g.cost()] += g.count;
  return merged;
}

}  // namespace kvcast::roofline
