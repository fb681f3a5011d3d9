#include "roofline/launches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace kvcast::roofline {
namespace {

using Labels = std::vector<std::string>;

/// A list in which a launch may go on, and the position of its last label there.
struct Place {
  const Labels* labels;
  std::size_t at;
};

struct OpenLaunch {
  std::size_t launch;
  int layer;
  std::vector<Place> places;

  /// Where a node with this label would stand.
  std::vector<Place> behind(const std::string& label) const {
    std::vector<Place> next;
    for (const Place& p : places) {
      const auto from = p.labels->begin() + static_cast<std::ptrdiff_t>(p.at) + 1;
      const auto found = std::find(from, p.labels->end(), label);
      if (found == p.labels->end()) continue;
      next.push_back({p.labels, static_cast<std::size_t>(found - p.labels->begin())});
    }
    return next;
  }
};

}  // namespace

bool is_decode_step(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return is_any<TiledAttention, AttentionScores, StateScan>(node.op) &&
           graph.tensor(node.inputs[0]).shape[1] == Count(1);
  });
}

std::vector<std::vector<std::size_t>> launches_of(const Graph& graph, const Lowering& lowering) {
  const Launch::In pass = is_decode_step(graph) ? Launch::In::Decode : Launch::In::Prefill;
  std::vector<const Labels*> lists;
  for (const Launch& launch : lowering.launches) {
    if (launch.in == Launch::In::AnyPass || launch.in == pass) lists.push_back(&launch.labels);
  }
  std::vector<std::vector<std::size_t>> launches;
  std::vector<OpenLaunch> open;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (is_message(node.op)) continue;
    std::erase_if(open, [&](const OpenLaunch& o) {
      return node.layer != no_layer && o.layer + 1 < node.layer;
    });
    const auto joined = std::find_if(open.rbegin(), open.rend(), [&](const OpenLaunch& o) {
      return !o.behind(node.label).empty();
    });
    if (joined != open.rend()) {
      joined->places = joined->behind(node.label);
      launches[joined->launch].push_back(i);
      continue;
    }
    OpenLaunch first{launches.size(), node.layer, {}};
    for (const Labels* labels : lists) {
      const auto found = std::find(labels->begin(), labels->end(), node.label);
      if (found == labels->end()) continue;
      first.places.push_back({labels, static_cast<std::size_t>(found - labels->begin())});
    }
    if (!first.places.empty()) open.push_back(std::move(first));
    launches.push_back({i});
  }
  return launches;
}

std::vector<std::size_t> uses_of(const Graph& graph) {
  std::vector<std::size_t> uses(graph.tensors().size());
  for (const Node& node : graph.nodes()) {
    for (const TensorId id : node.inputs) ++uses[id.index];
  }
  for (const TensorId id : graph.outputs()) ++uses[id.index];
  return uses;
}

Work launch_work(const Graph& graph, const std::vector<std::size_t>& nodes,
                 const std::vector<std::size_t>& uses) {
  constexpr auto activations = static_cast<std::size_t>(Storage::Activations);
  Work sum;
  std::map<TensorId, std::size_t> reads;
  for (const std::size_t i : nodes) {
    const Node& node = graph.nodes()[i];
    sum += work(graph, node);
    for (const TensorId id : node.inputs) ++reads[id];
  }
  for (const auto& [id, times] : reads) {
    const TensorInfo& tensor = graph.tensor(id);
    if (tensor.storage != Storage::Activations) continue;
    const bool made_here = tensor.producer && std::find(nodes.begin(), nodes.end(),
                                                        tensor.producer->index) != nodes.end();
    sum.read[activations] -= tensor.bytes() * (made_here ? times : times - 1);
    if (made_here && uses[id.index] == times) sum.written[activations] -= tensor.bytes();
  }
  return sum;
}

}  // namespace kvcast::roofline
