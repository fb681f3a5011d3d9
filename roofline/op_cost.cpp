#include "roofline/op_cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "model/base/error.h"

namespace kvcast::roofline {
namespace {

Stream stream_of(const Graph& graph, const Node& node, const Lowering& lowering) {
  const Op& op = node.op;
  const Engine runs_on = engine(graph, node);
  if (runs_on == Engine::DecodeAttention) return Stream::Decode;
  if (runs_on == Engine::TiledAttention) return Stream::Attention;
  if (runs_on == Engine::Matrix) return Stream::Product;
  if (std::holds_alternative<Softmax>(op)) return Stream::Softmax;
  const bool elementwise = std::holds_alternative<Elementwise>(op) ||
                           std::holds_alternative<RowMean>(op) ||
                           std::holds_alternative<RotateHalf>(op);
  const bool eager = lowering.elementwise == Kernels::Eager || lowering.attention == Kernels::Eager;
  return elementwise && eager ? Stream::Elementwise : Stream::Memory;
}

Repetition repetition_of(const Graph& graph, const Node& node) {
  if (!std::holds_alternative<Elementwise>(node.op) || node.inputs.size() < 2) return {};
  const TensorInfo& x = graph.tensor(node.inputs[0]);
  const TensorInfo& y = graph.tensor(node.inputs[1]);
  // Missing leading dimensions are repeated as a whole; a repetition within rows stays on chip.
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

/// Functions whose time is their exponential's, wherever their operands lie.
bool has_exponential(Function f) {
  return f == Function::SoftCap || f == Function::Silu || f == Function::Gelu ||
         f == Function::GeluTanh;
}

/// The operators that have OpCost::intermediate_bytes, whose time is that of moving numbers.
bool moves_intermediates(const Node& node, Stream stream, const Lowering& lowering) {
  if (std::holds_alternative<AttentionScores>(node.op) ||
      std::holds_alternative<AttentionValues>(node.op)) {
    return lowering.attention == Kernels::Eager;
  }
  const auto* elementwise = std::get_if<Elementwise>(&node.op);
  return stream == Stream::Elementwise &&
         (elementwise == nullptr || !has_exponential(elementwise->function));
}

/// The queries of a decode step: one, and what it takes back beside it.
bool is_one_and_more(const Count& queries) {
  const auto terms = queries.terms();
  return std::any_of(terms.begin(), terms.end(),
                     [](const Count::Term& t) { return t.monomial.factors().empty(); });
}

/// See OpCost::length.
Count length_of(const Graph& graph, const Node& node) {
  if (engine(graph, node) == Engine::Matrix) {
    Count rows = 1;
    const std::vector<Count>& shape = graph.tensor(node.output).shape;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows = rows * shape[i];
    return rows;
  }
  if (const auto* attention = std::get_if<TiledAttention>(&node.op)) {
    const bool as_measured = attention->mask.causal && attention->mask.window == 0 &&
                             !is_one_and_more(graph.tensor(node.inputs[0]).shape[1]);
    return as_measured ? attention->visible_keys : Count();
  }
  if (!std::holds_alternative<Softmax>(node.op)) return {};
  const std::vector<Count>& shape = graph.tensor(node.output).shape;
  return is_one_and_more(shape[shape.size() - 2]) ? Count() : shape.back();
}

bool same_operands(const Graph& graph, const Node& a, const Node& b) {
  const auto same_tensor = [&](TensorId i, TensorId j) {
    const TensorInfo& x = graph.tensor(i);
    const TensorInfo& y = graph.tensor(j);
    return x.dtype == y.dtype && x.storage == y.storage && x.shape == y.shape;
  };
  return a.op == b.op && a.inputs.size() == b.inputs.size() && same_tensor(a.output, b.output) &&
         std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), same_tensor);
}

}  // namespace

std::string_view name(Bound bound) {
  switch (bound) {
    case Bound::Compute: return "compute";
    case Bound::Memory: return "memory";
    case Bound::Link: return "link";
    case Bound::Latency: return "latency";
  }
  KVCAST_ASSERT(false);
  return {};
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
    const Stream stream = stream_of(graph, node, lowering);
    Count intermediates;
    if (moves_intermediates(node, stream, lowering)) {
      constexpr auto activations = static_cast<std::size_t>(Storage::Activations);
      intermediates = node_work.read[activations] + node_work.written[activations];
    }
    groups.push_back({node.phase, node.label, std::string(name(node.op)), engine(graph, node),
                      stream, std::move(node_work), repetition_of(graph, node), sharing,
                      std::move(intermediates), length_of(graph, node), 1});
  }
  return folded;
}

std::vector<OpGroup> fold(const Graph& graph, const Lowering& lowering) {
  return fold_nodes(graph, lowering).groups;
}

bool operator<(const OpCost& a, const OpCost& b) {
  const auto fields = [](const OpCost& c) {
    return std::tie(c.flops, c.bytes, c.engine, c.stream, c.repetition.operand_bytes,
                    c.repetition.times, c.sharing.operand_bytes, c.sharing.layers,
                    c.intermediate_bytes, c.length);
  };
  return fields(a) < fields(b);
}

LengthCurves length_curves(const OpCost& cost, const Rates& rates) {
  if (cost.length.is_zero()) return {};
  return {rates.flops_by_length[static_cast<std::size_t>(cost.engine)],
          rates.bytes_by_length[static_cast<std::size_t>(cost.stream)]};
}

std::vector<SparedBytes> spared_bytes(const OpCost& cost, const Rates& rates) {
  const BytesPerSecond bandwidth = rates.bytes_per_second[static_cast<std::size_t>(cost.stream)];
  std::vector<SparedBytes> spared;
  if (!cost.sharing.operand_bytes.is_zero()) {
    const auto layers = static_cast<double>(cost.sharing.layers);
    spared.push_back(
        {cost.sharing.operand_bytes, rates.on_chip_bytes, (layers - 1) / layers / bandwidth.value});
  }
  if (!cost.intermediate_bytes.is_zero() && rates.on_chip_bytes_per_second &&
      *rates.on_chip_bytes_per_second > bandwidth) {
    spared.push_back({cost.intermediate_bytes, most_intermediate_bytes(rates.on_chip_bytes),
                      1 / bandwidth.value - 1 / rates.on_chip_bytes_per_second->value});
  }
  return spared;
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

OpTime time_of(const OpGroup& group, const Rates& rates, std::span<const std::uint64_t> values) {
  OpTime t;
  t.flops = {group.work.flops.at(values)};
  t.bytes = {group.work.bytes().at(values)};
  if (!group.repetition.operand_bytes.is_zero()) {
    const std::uint64_t operand = group.repetition.operand_bytes.at(values);
    const std::uint64_t times = group.repetition.times.at(values);
    const double between =
        static_cast<double>(t.bytes.count - operand) / static_cast<double>(times) +
        static_cast<double>(operand);
    if (between > rates.on_chip_bytes) t.bytes_again = {checked_multiply(operand, times - 1)};
  }
  if (!group.sharing.operand_bytes.is_zero()) {
    const std::uint64_t operand = group.sharing.operand_bytes.at(values);
    const std::uint64_t layers = group.sharing.layers;
    // Each of the layers is charged its part of the one reading.
    if (static_cast<double>(operand) <= rates.on_chip_bytes) {
      t.bytes_spared = {checked_multiply(operand, layers - 1) / layers};
    }
  }
  t.compute = t.flops / rates.flops_per_second[static_cast<std::size_t>(group.engine)];
  const BytesPerSecond bandwidth = rates.bytes_per_second[static_cast<std::size_t>(group.stream)];
  if (rates.on_chip_bytes_per_second && *rates.on_chip_bytes_per_second > bandwidth) {
    const std::uint64_t intermediates = group.intermediate_bytes.at(values);
    if (static_cast<double>(intermediates) <= most_intermediate_bytes(rates.on_chip_bytes)) {
      t.bytes_on_chip = {intermediates};
    }
  }
  const Bytes moved{(t.bytes + t.bytes_again).count - t.bytes_spared.count - t.bytes_on_chip.count};
  t.memory = moved / bandwidth;
  if (t.bytes_on_chip.count > 0) {
    t.memory = t.memory + t.bytes_on_chip / *rates.on_chip_bytes_per_second;
  }
  if (t.flops.count == 0) t.compute = {0};
  if (const LengthCurves curves = length_curves(group.cost(), rates); !curves.are_flat()) {
    const auto length = static_cast<double>(group.length.at(values));
    t.compute = {t.compute.value / curves.flops.at(length)};
    t.memory = {t.memory.value / curves.bytes.at(length)};
  }
  const Seconds busy{busy_seconds(t.compute.value, t.memory.value, rates.exposed)};
  const Seconds latency = rates.latency(group.engine, group.stream);
  t.total = busy + latency;
  t.bound = busy > t.memory ? Bound::Compute : Bound::Memory;
  if (latency > busy) t.bound = Bound::Latency;
  return t;
}

}  // namespace kvcast::roofline
