#include "roofline/op_cost.h"

#include <algorithm>
#include <map>
#include <set>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast::roofline {
namespace {

BandwidthClass bandwidth_class(const Graph& graph, const Node& node, const Lowering& lowering) {
  const Op& op = node.op;
  const RateClass runs_on = rate_class(graph, node);
  if (runs_on == RateClass::DecodeAttention) return BandwidthClass::Decode;
  if (runs_on == RateClass::TiledAttention) return BandwidthClass::Attention;
  if (runs_on == RateClass::Matrix) return BandwidthClass::Product;
  if (std::holds_alternative<Softmax>(op)) return BandwidthClass::Softmax;
  const bool eager = lowering.elementwise == Kernels::Eager || lowering.attention == Kernels::Eager;
  return eager && is_any<Elementwise, RowMean, RotateHalf>(op) ? BandwidthClass::Elementwise
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
         f == Function::GeluTanh;
}

/// The operators that have OpCost::intermediate_bytes, whose time is that of moving numbers.
bool moves_intermediates(const Node& node, BandwidthClass moves_at, const Lowering& lowering) {
  if (is_any<AttentionScores, AttentionValues>(node.op)) {
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

/// See OpCost::length.
Count length_of(const Graph& graph, const Node& node) {
  if (rate_class(graph, node) == RateClass::Matrix) {
    return graph.tensor(node.output()).rows();
  }
  if (const auto* attention = std::get_if<TiledAttention>(&node.op)) {
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
  struct Known {
    const Node* node;
    std::size_t group;
  };
  std::map<std::pair<std::string_view, std::string_view>, std::vector<Known>> by_label;
  const std::map<TensorId, std::set<int>> readers = cache_readers(graph);
  for (const Node& node : graph.nodes()) {
    folded.group_of_node.push_back(no_group);
    if (is_message(node.op)) continue;
    std::vector<Known>& known = by_label[{node.phase, node.label}];
    Work node_work = work(graph, node);
    const Sharing sharing = sharing_of(node, node_work, readers);
    const auto alike = std::find_if(known.begin(), known.end(), [&](const Known& k) {
      return same_operands(graph, *k.node, node) && groups[k.group].sharing == sharing;
    });
    folded.group_of_node.back() = alike == known.end() ? groups.size() : alike->group;
    if (alike != known.end()) {
      ++groups[alike->group].count;
      continue;
    }
    known.push_back({&node, groups.size()});
    const BandwidthClass moves_at = bandwidth_class(graph, node, lowering);
    Count intermediates;
    if (moves_intermediates(node, moves_at, lowering)) {
      constexpr auto activations = static_cast<std::size_t>(Storage::Activations);
      intermediates = node_work.read[activations] + node_work.written[activations];
    }
    groups.push_back({node.phase, node.label, std::string(name(node.op)), rate_class(graph, node),
                      moves_at, std::move(node_work), broadcast_of(graph, node), sharing,
                      std::move(intermediates), length_of(graph, node), 1});
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
