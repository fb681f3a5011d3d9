#include "model/gradient/gradient.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/base/words.h"
#include "model/gradient/adjoints.h"

namespace kvcast {
namespace {

constexpr Words<Recompute, 3> recompute_words = {
    {{Recompute::None, "none"}, {Recompute::Selective, "selective"}, {Recompute::Full, "full"}}};

bool is_loss(const Op& op) { return is_any<CrossEntropy, MeanAbsoluteError>(op); }

/// What a pass is for: its losses, or in a pipeline what the next stage gets.
bool is_end(const Op& op) { return is_loss(op) || is_any<Send>(op); }

/// Rows appended to a cache without any.
bool fills_empty_cache(const Graph& graph, const Node& node) {
  return is_any<CacheAppend, JoinRows>(node.op) && graph.tensor(node.inputs[0]).shape[1].is_zero();
}

/// Queries by keys: a product of two lengths that are no constants.
bool grows_with_square(const TensorInfo& t) {
  const Count pairs = t.elements();
  return std::any_of(pairs.terms().begin(), pairs.terms().end(), [](const Count::Term& term) {
    const auto factors = term.monomial.factors();
    return std::count(factors.begin(), factors.end(), symbol::prompt_len.id) > 1;
  });
}

bool is_gather_of_rows(const Node& node) {
  const auto* const op = std::get_if<Collective>(&node.op);
  return op != nullptr && op->kind == CollectiveKind::AllGather && op->of_rows;
}

/// By tensor: the same on all devices of a group, which a sum or gathering makes it.
std::vector<bool> same_on_all(const Graph& graph) {
  std::vector<bool> same(graph.tensors().size(), true);
  for (std::size_t i = 0; i < same.size(); ++i) same[i] = !graph.tensors()[i].part;
  for (const Node& n : graph.nodes()) {
    bool is_same =
        std::all_of(n.inputs.begin(), n.inputs.end(), [&](TensorId id) { return same[id.index]; });
    if (const auto* collective = std::get_if<Collective>(&n.op)) {
      is_same = collective->kind != CollectiveKind::ReduceScatter;
    }
    for (const TensorId id : n.outputs) same[id.index] = is_same;
  }
  return same;
}

/// A layer of one of the models in a pass, which have phases of their own.
struct LayerOf {
  std::string_view phase;
  int layer;
  explicit LayerOf(const Node& node) : phase(node.phase), layer(node.layer) {}
  bool operator==(const LayerOf&) const = default;
};

class Differentiation final : public Backward {
 public:
  Differentiation(const Graph& forward, const GradientOptions& options)
      : forward_(forward),
        options_(options),
        at_(forward.tensors().size()),
        again_(forward.tensors().size()),
        saved_(forward.nodes().size()),
        active_(forward.tensors().size(), false),
        needed_(forward.nodes().size(), false),
        layers_read_(forward.tensors().size()),
        gradients_(forward.tensors().size()) {
    if (options.sharding != nullptr && !options.sharding->plan().sequence_parallel) {
      same_ = same_on_all(forward);
    }
  }

  TrainingPass take() {
    find_active();
    find_needed();
    const std::vector<std::vector<std::size_t>> chunks = nodes_by_chunk();
    const auto copy_all = [&](const std::vector<std::size_t>& nodes) {
      for (const std::size_t n : nodes) copy(n);
    };
    copy_all(chunks[0]);
    const auto forward_nodes = static_cast<std::uint32_t>(graph_.nodes().size());
    // To the loss of a chunk and back to its rows before the next one begins: only one is alive.
    for (std::size_t chunk = chunks.size(); chunk-- > 0;) {
      if (chunk > 0) copy_all(chunks[chunk]);
      const std::vector<std::size_t>& nodes = chunks[chunk];
      std::for_each(nodes.rbegin(), nodes.rend(), [&](std::size_t n) { go_back(n); });
    }
    for (const auto& [weight, gradient] : of_weights_) graph_.mark_output(gradient);
    return {std::move(graph_), {forward_nodes}};
  }

  bool is_active(TensorId id) const override { return active_[id.index]; }
  const TensorInfo& info(TensorId id) const override { return forward_.tensor(id); }
  const TensorInfo& gradient_info(TensorId id) const override { return graph_.tensor(id); }

  TensorId value(TensorId id) override {
    const TensorInfo& t = forward_.tensor(id);
    if (!t.producer || is_kept(id)) return *at_[id.index];
    return computed_again(id);
  }
  TensorId saved() override {
    const TensorId output = forward_.nodes()[current_].output();
    if (!is_kept(output)) computed_again(output);
    return *saved_[current_];
  }

  TensorId add(Op op, std::string_view what, std::vector<TensorId> inputs, TensorId like) override {
    return add(std::move(op), what, std::move(inputs), std::vector<TensorId>{like}).front();
  }
  std::vector<TensorId> add(Op op, std::string_view what, std::vector<TensorId> inputs,
                            std::vector<TensorId> like) override {
    std::vector<TensorInfo> results;
    for (const TensorId id : like) {
      const TensorInfo& t = forward_.tensor(id);
      results.push_back({"", t.shape, t.dtype, Storage::Activations, {}});
    }
    return add_results(std::move(op), what, std::move(inputs), std::move(results));
  }
  std::vector<TensorId> add_results(Op op, std::string_view what, std::vector<TensorId> inputs,
                                    std::vector<TensorInfo> results) override {
    return graph_.add_node(node(std::move(op), what, std::move(inputs)), std::move(results));
  }

  void contribute(TensorId id, TensorId gradient) override {
    if (forward_.tensor(id).storage == Storage::Weights) {
      return accumulate(id, SumRepeats{}, "sum", {gradient});
    }
    const bool is_part =
        !same_.empty() && same_[id.index] && !same_[forward_.nodes()[current_].output().index];
    (is_part ? parts_[id] : gradients_[id.index]).push_back(gradient);
  }

  void accumulate(TensorId weight, Op op, std::string_view what,
                  std::vector<TensorId> inputs) override {
    const TensorInfo& t = forward_.tensor(weight);
    TensorInfo gradient{t.name, t.shape, options_.weight_gradients, Storage::Gradients, {},
                        0,      t.part};
    const auto before = of_weights_.find(weight);
    if (before != of_weights_.end()) {
      inputs.push_back(before->second);
    } else if (options_.accumulates) {
      inputs.push_back(graph_.add_tensor(gradient));
    }
    of_weights_[weight] =
        graph_.add_node(node(std::move(op), what, std::move(inputs)), std::move(gradient));
  }

 private:
  Node node(Op op, std::string_view what, std::vector<TensorId> inputs) const {
    const Node& of = forward_.nodes()[current_];
    return {std::move(op), std::move(inputs), {}, of.label + "_" + std::string(what),
            of.phase,      of.layer};
  }

  void find_active() {
    for (std::size_t i = 0; i < active_.size(); ++i) {
      const TensorInfo& t = forward_.tensors()[i];
      if (t.storage != Storage::Weights) continue;
      active_[i] = !options_.trains || options_.trains(t.name);
    }
    for (const Node& n : forward_.nodes()) {
      const bool any = std::any_of(n.inputs.begin(), n.inputs.end(),
                                   [&](TensorId id) { return active_[id.index]; });
      // What a stage receives is computed from the weights of those before.
      for (const TensorId id : n.outputs) active_[id.index] = any || is_any<Receive>(n.op);
      // Which experts or keys are chosen does not change with a weight.
      if (is_any<Route, ChooseKeys>(n.op)) active_[n.output().index] = false;
    }
  }

  /// Nodes that lead to a loss, here or in a later stage.
  void find_needed() {
    std::vector<bool> read(forward_.tensors().size(), false);
    for (std::size_t n = forward_.nodes().size(); n-- > 0;) {
      const Node& node = forward_.nodes()[n];
      needed_[n] = is_end(node.op) || std::any_of(node.outputs.begin(), node.outputs.end(),
                                                  [&](TensorId id) { return read[id.index]; });
      if (!needed_[n]) continue;
      for (const TensorId id : node.inputs) {
        read[id.index] = true;
        layers_read_[id.index].emplace_back(node);
      }
    }
  }

  /// The needed nodes whose first input is of a part of SplitRows, by part from 1 on; and first all
  /// others. Nodes of two parts have nothing of each other; targets' parts have none.
  std::vector<std::vector<std::size_t>> nodes_by_chunk() const {
    std::vector<std::vector<std::size_t>> nodes(1);
    std::vector<std::size_t> chunk_of(forward_.tensors().size(), 0);
    for (std::size_t n = 0; n < forward_.nodes().size(); ++n) {
      const Node& node = forward_.nodes()[n];
      const std::size_t chunk = node.inputs.empty() ? 0 : chunk_of[node.inputs[0].index];
      for (const TensorId id : node.outputs) {
        chunk_of[id.index] = is_any<SplitRows>(node.op) ? nodes.size() : chunk;
        nodes.resize(std::max(nodes.size(), chunk_of[id.index] + 1));
      }
      if (needed_[n]) nodes[chunk].push_back(n);
    }
    return nodes;
  }

  /// The forward tensor in the graph.
  TensorId placed(TensorId id) {
    std::optional<TensorId>& at = at_[id.index];
    if (!at) {
      KVCAST_ASSERT(!forward_.tensor(id).producer);
      at = graph_.add_tensor(forward_.tensor(id));
    }
    return *at;
  }

  /// The node again, its inputs from `place`; results are noted by `set`.
  template <typename Place, typename Set>
  void replay(std::size_t n, bool saves, Place place, Set set) {
    Node node = forward_.nodes()[n];
    std::vector<TensorInfo> results;
    for (const TensorId id : node.outputs) results.push_back(forward_.tensor(id));
    std::vector<TensorId> outputs = std::move(node.outputs);
    node.outputs.clear();
    if (is_any<StateScan>(node.op) && forward_.tensor(node.inputs.back()).rows().is_zero()) {
      node.inputs.pop_back();
      TensorInfo& state = results[1];
      state = {"", state.shape, state.dtype, Storage::Activations, {}};
    }
    std::optional<TensorInfo> saved;
    if (saves && active_[outputs.front().index]) {
      saved = saved_result(forward_, forward_.nodes()[n]);
    }
    if (saved) results.push_back(*saved);
    for (TensorId& id : node.inputs) id = place(id);
    const std::vector<TensorId> made = graph_.add_node(std::move(node), std::move(results));
    for (std::size_t i = 0; i < outputs.size(); ++i) set(outputs[i], made[i]);
    if (saved) saved_[n] = made.back();
  }

  void copy(std::size_t n) {
    const Node& node = forward_.nodes()[n];
    if (fills_empty_cache(forward_, node)) {
      at_[node.output().index] = placed(node.inputs[1]);
      return;
    }
    replay(
        n, is_kept(node.output()), [&](TensorId id) { return placed(id); },
        [&](TensorId id, TensorId made) { at_[id.index] = made; });
  }

  void go_back(std::size_t n) {
    const Node& node = forward_.nodes()[n];
    current_ = n;
    if (is_loss(node.op)) {
      if (is_active(node.inputs[0])) contribute(node.inputs[0], *at_[node.output().index]);
      graph_.mark_output(*at_[node.outputs[1].index]);
      return;
    }
    if (const auto* const sent = std::get_if<Send>(&node.op)) {
      TensorInfo message = forward_.tensor(node.output());
      message.producer = {};
      contribute(node.inputs[0], add(Receive{sent->rank, 0}, "gradient",
                                     {graph_.add_tensor(std::move(message))}, node.inputs[0]));
      return;
    }
    const std::vector<TensorId> results = results_with_gradient(node);
    std::vector<TensorId> gradients;
    for (const TensorId result : results) {
      if (!is_active(result)) continue;
      if (const std::optional<TensorId> g = gradient_of(result)) gradients.push_back(*g);
    }
    if (gradients.empty()) return;
    KVCAST_ASSERT(gradients.size() == results.size());
    if (fills_empty_cache(forward_, node)) return contribute(node.inputs[1], gradients.front());
    record_adjoint(*this, node, gradients);
  }

  /// Of all readers, and devices; none where no reader has one.
  std::optional<TensorId> gradient_of(TensorId result) {
    if (const auto parts = parts_.find(result); parts != parts_.end()) {
      const Collective sum{CollectiveKind::AllReduce, options_.sharding->tensor_group(),
                           options_.sharding->slice()};
      gradients_[result.index].push_back(
          add(sum, "sum_parts", {sum_of(result, parts->second)}, result));
    }
    if (gradients_[result.index].empty()) return {};
    return sum_of(result, gradients_[result.index]);
  }

  /// Of all readers, the last one's first.
  TensorId sum_of(TensorId id, const std::vector<TensorId>& all) {
    TensorId sum = all.front();
    for (std::size_t i = 1; i < all.size(); ++i) {
      sum = add(Elementwise{Function::Add}, "sum", {sum, all[i]}, id);
    }
    return sum;
  }

  bool is_kept(TensorId id) const {
    const Node& producer = forward_.node(*forward_.tensor(id).producer);
    // Each device keeps its own rows and gathers them again (Korthikanti et al., section 4.2.2).
    if (is_gather_of_rows(producer)) return false;
    switch (options_.recompute) {
      case Recompute::None: return true;
      case Recompute::Selective: return !grows_with_square(forward_.tensor(id));
      case Recompute::Full: {
        if (producer.layer == no_layer) return true;
        const std::vector<LayerOf>& readers = layers_read_[id.index];
        return std::any_of(readers.begin(), readers.end(),
                           [&](const LayerOf& l) { return l != LayerOf(producer); });
      }
    }
    return true;
  }

  TensorId computed_again(TensorId id) {
    std::optional<TensorId>& again = again_[id.index];
    if (again) return *again;
    const std::size_t n = forward_.tensor(id).producer->index;
    const Node& producer = forward_.nodes()[n];
    if (options_.recompute == Recompute::Full && producer.layer != no_layer) {
      replay_layer(LayerOf(producer));
    } else {
      replay_node(n);
    }
    return *again_[id.index];
  }

  void replay_node(std::size_t n) {
    const Node& node = forward_.nodes()[n];
    const auto place = [&](TensorId id) { return value(id); };
    const auto set = [&](TensorId id, TensorId made) { again_[id.index] = made; };
    if (fills_empty_cache(forward_, node)) return set(node.output(), value(node.inputs[1]));
    replay(n, true, place, set);
  }

  /// All of a layer, as frameworks do, its last product too, which nothing reads. Nothing is sent
  /// again, and losses have left their gradients.
  void replay_layer(LayerOf layer) {
    for (std::size_t n = 0; n < forward_.nodes().size(); ++n) {
      const Node& node = forward_.nodes()[n];
      if (!needed_[n] || LayerOf(node) != layer || is_message(node.op) || is_loss(node.op))
        continue;
      replay_node(n);
    }
  }

  const Graph& forward_;
  const GradientOptions& options_;
  Graph graph_;
  std::vector<std::optional<TensorId>> at_;        ///< by forward tensor
  std::vector<std::optional<TensorId>> again_;     ///< the same, computed again
  std::vector<std::optional<TensorId>> saved_;     ///< second results, by forward node
  std::vector<bool> active_;                       ///< by forward tensor
  std::vector<bool> needed_;                       ///< by forward node
  std::vector<std::vector<LayerOf>> layers_read_;  ///< by forward tensor: the layers of its readers
  std::vector<std::vector<TensorId>> gradients_;   ///< by forward tensor, in order
  std::vector<bool> same_;  ///< see same_on_all(); empty: no parts are summed
  std::map<TensorId, std::vector<TensorId>> parts_;  ///< of sums over devices
  std::map<TensorId, TensorId> of_weights_;
  std::size_t current_ = 0;  ///< the forward node whose adjoint is recorded
};

}  // namespace

Recompute parse_recompute(std::string_view word) {
  return parse_word("recomputation", word, recompute_words);
}

std::string_view name(Recompute recompute) { return word_for(recompute, recompute_words); }

std::set<std::string> summed_over_group(const Graph& forward, const Sharding& sharding) {
  std::set<std::string> names;
  if (sharding.plan().tp == 1) return names;
  const std::vector<bool> same = same_on_all(forward);
  for (const Node& n : forward.nodes()) {
    for (const TensorId id : n.inputs) {
      const TensorInfo& t = forward.tensor(id);
      if (t.storage != Storage::Weights || t.part) continue;
      // Of a product that gives sums one device alone adds the bias, to all rows.
      if (is_any<Linear>(n.op) && id != n.inputs[1] && forward.tensor(n.inputs[1]).part) continue;
      if (sharding.plan().sequence_parallel || !same[n.output().index]) names.insert(t.name);
    }
  }
  return names;
}

TrainingPass with_gradients(const Graph& forward, const GradientOptions& options) {
  return Differentiation(forward, options).take();
}

}  // namespace kvcast
