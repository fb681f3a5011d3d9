/// Graphs run by the plain loops alone, on numbers of any type.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/execute/plain_gradients.h"
#include "model/execute/plain_loops.h"
#include "tests/execute/analytic_work.h"
#include "tests/gradient/dual_numbers.h"

namespace kvcast::execute {

/// Operators of which no gradient is asked, and which have loops for real numbers alone.
template <typename O>
constexpr bool runs_on_reals_alone =
    std::is_same_v<O, SparseValues> || std::is_same_v<O, ChooseKeys> ||
    std::is_same_v<O, RopeAngles> || std::is_same_v<O, KeepTokens> || std::is_same_v<O, Send> ||
    std::is_same_v<O, Receive> || std::is_same_v<O, Collective> ||
    std::is_same_v<O, DispatchTokens> || std::is_same_v<O, ReturnTokens> ||
    std::is_same_v<O, AlibiBias>;

inline CountedWork run_on(const Call& call, double /*of_type*/) {
  return run_plain(call, DType::FP64);
}
inline CountedWork run_on(const Call& call, Dual /*of_type*/) {
  std::visit(
      [&]<typename O>(const O& op) {
        if constexpr (!runs_on_reals_alone<O>) {
          PlainLoops<Dual> loops(call);
          loops(op);
          return;
        }
        // Of no input whose tangent counts.
        std::vector<std::vector<double>> values;
        const auto in_reals = [&](Operand x) {
          std::vector<double>& reals = values.emplace_back();
          for (std::size_t i = 0; i < x.shape.elements(); ++i) {
            reals.push_back(x.numbers<Dual>()[i].value);
          }
          x.data = reinterpret_cast<float*>(reals.data());
          return x;
        };
        std::vector<Operand> inputs;
        for (const Operand& x : call.inputs) inputs.push_back(in_reals(x));
        const Operand output = in_reals(call.output);
        run_plain({call.node, inputs, output, call.symbols}, DType::FP64);
        const std::vector<double>& numbers = values.back();
        for (std::size_t i = 0; i < numbers.size(); ++i)
          call.output.numbers<Dual>()[i] = numbers[i];
      },
      call.node.op);
  return {};
}

/// All tensors of a graph, which stay after it has run.
template <typename N>
class PlainRun {
 public:
  using OnNode = std::function<void(const Node&, const CountedWork&)>;
  /// In place of a Collective, which one run alone cannot do.
  std::function<void(const Collective&, const Operand& input, const Operand& output)> on_collective;
  /// In place of a Send or a Receive, likewise.
  std::function<void(const Node&, const Operand& input, const Operand& output)> on_message;

  PlainRun(const Graph& graph, SymbolValues symbols) : graph_(graph), symbols_(std::move(symbols)) {
    for (std::size_t i = 0; i < graph.tensors().size(); ++i) {
      const TensorInfo& t = graph.tensors()[i];
      numbers_[place_of(i)].resize(t.elements().at(symbols_));
    }
  }

  /// Of a weight, its gradient, an optimiser's state or an input.
  std::vector<N>& numbers(Storage storage, const std::string& name) {
    return numbers_.at({storage, name});
  }
  std::vector<N>& numbers(TensorId id) { return numbers_.at(place_of(id.index)); }

  void run(const OnNode& on_node = nullptr) {
    std::vector<Operand> operands(graph_.tensors().size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      Operand& operand = operands[i];
      operand.info = &graph_.tensors()[i];
      for (const Count& dim : operand.info->shape) operand.shape.push_back(dim.at(symbols_));
      operand.batch_stride = operand.shape.sequence_elements();
      operand.data = reinterpret_cast<float*>(numbers_.at(place_of(i)).data());
    }
    for (const Node& node : graph_.nodes()) {
      std::vector<Operand> inputs;
      for (const TensorId id : node.inputs) inputs.push_back(operands[id.index]);
      const std::size_t first = node.output().index;
      Call call{node, inputs, operands[first], symbols_};
      call.more_outputs = std::span(operands).subspan(first + 1, node.outputs.size() - 1);
      const auto* const collective = std::get_if<Collective>(&node.op);
      if (collective != nullptr && on_collective) {
        on_collective(*collective, inputs[0], call.output);
        continue;
      }
      if (is_message(node.op) && on_message) {
        on_message(node, inputs[0], call.output);
        continue;
      }
      const CountedWork counted = run_on(call, N{});
      if (on_node) on_node(node, counted);
    }
  }

  /// `check(node, counted, analytic)` of each node.
  template <typename Check>
  void run_counted(Check check) {
    run([&](const Node& node, const CountedWork& counted) {
      check(node, counted, analytic_work(work(graph_, node), symbols_));
    });
  }

 private:
  /// Tensors with a name are shared by what reads and writes them.
  using Place = std::pair<Storage, std::string>;
  Place place_of(std::size_t i) const {
    const TensorInfo& t = graph_.tensors()[i];
    const bool named = !t.name.empty() && (!t.producer || t.storage != Storage::Activations);
    return {t.storage, named ? t.name : "tensor " + std::to_string(i)};
  }

  const Graph& graph_;
  SymbolValues symbols_;
  std::map<Place, std::vector<N>> numbers_;
};

}  // namespace kvcast::execute
