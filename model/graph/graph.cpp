#include "model/graph/graph.h"

#include <algorithm>
#include <ostream>
#include <set>
#include <utility>

#include "model/base/error.h"
#include "model/base/words.h"
#include "model/graph/work.h"

namespace kvcast {
namespace {

/// A run of consecutive nodes with the same layer number.
struct LayerSpan {
  std::size_t first = 0;
  std::size_t size = 0;
  int layer = no_layer;
};

std::vector<LayerSpan> layer_spans(const Graph& graph) {
  std::vector<LayerSpan> spans;
  const auto nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const bool same = !spans.empty() && nodes[i].layer == spans.back().layer &&
                      nodes[i].phase == nodes[spans.back().first].phase;
    if (!same) spans.push_back({i, 0, nodes[i].layer});
    ++spans.back().size;
  }
  return spans;
}

bool same_operators(const Graph& graph, const LayerSpan& a, const LayerSpan& b) {
  if (a.size != b.size || a.layer == no_layer || b.layer == no_layer) return false;
  for (std::size_t i = 0; i < a.size; ++i) {
    const Node& x = graph.nodes()[a.first + i];
    const Node& y = graph.nodes()[b.first + i];
    if (!(x.op == y.op) || x.label != y.label || x.phase != y.phase ||
        x.outputs.size() != y.outputs.size()) {
      return false;
    }
    for (std::size_t o = 0; o < x.outputs.size(); ++o) {
      if (graph.tensor(x.outputs[o]).shape != graph.tensor(y.outputs[o]).shape) return false;
    }
  }
  return true;
}

/// Spans that are drawn as one, the first of them.
using Alike = std::vector<std::size_t>;

/// Layers one after another that have the same operators are alike; then so are groups of these
/// that repeat: a helper model's layer with the base's that are made of it.
std::vector<Alike> alike_spans(const Graph& graph, const std::vector<LayerSpan>& spans) {
  const auto repeat = [&](const Alike& a, const Alike& b) {
    return a.size() == b.size() && same_operators(graph, spans[a[0]], spans[b[0]]);
  };
  std::vector<Alike> runs;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const bool same = !runs.empty() && same_operators(graph, spans[runs.back()[0]], spans[s]);
    if (!same) runs.emplace_back();
    runs.back().push_back(s);
  }
  std::vector<Alike> drawn;
  for (std::size_t r = 0; r < runs.size();) {
    std::size_t period = 1;
    std::size_t covered = 1;
    for (std::size_t p = 2; r + 2 * p <= runs.size(); ++p) {
      std::size_t end = r + p;
      while (end < runs.size() && repeat(runs[end - p], runs[end])) ++end;
      const std::size_t whole = (end - r) / p * p;
      if (whole > p && whole > covered) {
        period = p;
        covered = whole;
      }
    }
    const std::size_t first = drawn.size();
    drawn.resize(first + period);
    for (std::size_t i = 0; i < covered; ++i, ++r) {
      Alike& alike = drawn[first + i % period];
      alike.insert(alike.end(), runs[r].begin(), runs[r].end());
    }
  }
  return drawn;
}

/// True if every coefficient of p is at most the same one of q; sizes are never negative.
bool nowhere_above(const Count& p, const Count& q) {
  const Count rest = q - p;
  return std::all_of(rest.terms().begin(), rest.terms().end(),
                     [](const Count::Term& t) { return t.numerator >= 0; });
}

/// "encoder " and so on before "layer"; a decoder-only model has one kind of layer.
std::string layer_kind(const std::string& phase) { return phase == "layers" ? "" : phase + " "; }

/// Inside a quoted DOT string.
std::string dot_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string shape_text(const TensorInfo& tensor, const Symbols& symbols) {
  std::string text = "[";
  for (const Count& dimension : tensor.shape) {
    text += (text.size() > 1 ? ", " : "") + symbols.to_string(dimension);
  }
  return text + "] " + std::string(name(tensor.dtype));
}

}  // namespace

std::string_view name(Storage storage) {
  static constexpr Words<Storage, num_storages> storages = {
      {{Storage::Weights, "weights"},
       {Storage::KvCache, "kv_cache"},
       {Storage::Activations, "activations"},
       {Storage::Messages, "messages"},
       {Storage::Gradients, "gradients"},
       {Storage::OptimizerStates, "optimizer_states"}}};
  return word_for(storage, storages);
}

std::string place(const Node& node) {
  return (node.layer == no_layer ? "" : "layer " + std::to_string(node.layer) + ", ") + node.label;
}

Count TensorInfo::elements() const { return shape.empty() ? 1 : rows() * shape.back(); }

Count TensorInfo::rows() const {
  Count product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) product = product * shape[i];
  return product;
}

TensorId Graph::add_tensor(TensorInfo info) {
  tensors_.push_back(std::move(info));
  return {static_cast<std::uint32_t>(tensors_.size() - 1)};
}

TensorId Graph::add_node(Node node, TensorInfo output) {
  return add_node(std::move(node), std::vector<TensorInfo>{std::move(output)}).front();
}

std::vector<TensorId> Graph::add_node(Node node, std::vector<TensorInfo> outputs) {
  KVCAST_ASSERT(!outputs.empty());
  for (const TensorId input : node.inputs) KVCAST_ASSERT(input.index < tensors_.size());
  node.outputs.clear();
  for (TensorInfo& output : outputs) {
    output.producer = NodeId{static_cast<std::uint32_t>(nodes_.size())};
    node.outputs.push_back(add_tensor(std::move(output)));
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
}

std::vector<NodeId> predecessors(const Graph& graph, NodeId id) {
  std::vector<NodeId> result;
  for (const TensorId input : graph.node(id).inputs) {
    const auto producer = graph.tensor(input).producer;
    if (producer) result.push_back(*producer);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<Count> activation_peaks(const Graph& graph) {
  const auto tensors = graph.tensors();
  const auto nodes = graph.nodes();
  std::vector<std::size_t> last_reader(tensors.size(), 0);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].producer) last_reader[t] = tensors[t].producer->index;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const TensorId input : nodes[i].inputs) last_reader[input.index] = i;
  }
  std::vector<std::vector<std::size_t>> dying(nodes.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].storage == Storage::Activations) dying[last_reader[t]].push_back(t);
  }
  Count change;  // of what is live, since the last peak
  for (const TensorInfo& t : tensors) {
    if (!t.producer && t.storage == Storage::Activations) change += t.bytes();
  }
  Count live;
  std::set<Count> peaks;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const TensorId id : nodes[i].outputs) {
      const TensorInfo& output = graph.tensor(id);
      if (output.storage == Storage::Activations) change += output.bytes();
    }
    // Where nothing dies, the next node has more. Where nothing has changed, this peak is the last.
    if (dying[i].empty() && i + 1 < nodes.size()) continue;
    if (!change.is_zero()) peaks.insert(live += std::exchange(change, {}));
    for (const std::size_t t : dying[i]) change -= tensors[t].bytes();
  }
  // A peak that is nowhere above another one can never be the maximum.
  std::vector<Count> maximal;
  for (const Count& p : peaks) {
    const bool dominated = std::any_of(peaks.begin(), peaks.end(), [&](const Count& q) {
      return !(p == q) && nowhere_above(p, q);
    });
    if (!dominated) maximal.push_back(p);
  }
  return maximal;
}

void write_dot(std::ostream& out, const Graph& graph, const Symbols& symbols,
               std::string_view title) {
  const auto spans = layer_spans(graph);
  const auto nodes = graph.nodes();
  std::vector<std::size_t> drawn_as(nodes.size());
  const std::string name_text = dot_text(title);
  out << "digraph \"" << name_text << "\" {\n"
      << "  label=\"" << name_text << "\"; labelloc=t; rankdir=TB;\n"
      << "  node [shape=box, style=rounded, fontname=\"Helvetica\", fontsize=10];\n";
  for (const Alike& alike : alike_spans(graph, spans)) {
    const LayerSpan& span = spans[alike[0]];
    if (span.layer != no_layer) {
      out << "  subgraph cluster_" << alike[0] << " {\n    label=\""
          << layer_kind(nodes[span.first].phase) << "layer " << span.layer;
      if (alike.size() > 1) {
        out << " to " << spans[alike.back()].layer << " (x" << alike.size() << ")";
      }
      out << "\"; color=gray;\n";
    }
    for (std::size_t i = 0; i < span.size; ++i) {
      const std::size_t index = span.first + i;
      const Node& node = nodes[index];
      for (const std::size_t s : alike) drawn_as[spans[s].first + i] = index;
      const Work w = work(graph, node);
      out << "    n" << index << " [label=\"" << node.label << "\\n" << name(node.op);
      for (const TensorId id : node.outputs) out << " " << shape_text(graph.tensor(id), symbols);
      if (!w.flops.is_zero()) out << "\\nFLOPs " << symbols.to_string(w.flops);
      out << "\"];\n";
    }
    if (span.layer != no_layer) out << "  }\n";
  }
  std::set<std::pair<std::size_t, std::size_t>> edges;
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    for (const NodeId before : predecessors(graph, {i})) {
      edges.emplace(drawn_as[before.index], drawn_as[i]);
    }
  }
  for (const auto& [from, to] : edges) {
    // An edge from a repeated layer back to its own first operators is the residual stream.
    out << "  n" << from << " -> n" << to << (from >= to ? " [style=dashed, constraint=false]" : "")
        << ";\n";
  }
  out << "}\n";
}

}  // namespace kvcast
