/// Random numbers for a training graph, and its gradients by two ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/gradient/gradient.h"
#include "tests/gradient/plain_run.h"

namespace kvcast::execute {

/// ⟨ȳ, J·v⟩ and ⟨Jᵀ·ȳ, v⟩, which must be equal, and the size of the second's terms.
struct AdjointPair {
  double forward = 0;
  double backward = 0;
  double size = 0;
  double error() const { return std::abs(forward - backward) / std::max(size, 1e-300); }
};

inline double value_of(double x) { return x; }
inline double value_of(Dual x) { return x.value; }

/// Values of inputs that are no weights, by their names.
using FixedInputs = std::map<std::string, std::vector<double>>;

/// Fills all weights with random numbers, the same for both types of number, and inputs with what
/// is given or random numbers.
template <typename N>
void fill(PlainRun<N>& run, const Graph& graph, const FixedInputs& fixed, unsigned seed) {
  std::map<std::string, bool> done;
  for (const TensorInfo& t : graph.tensors()) {
    if (t.producer || t.storage == Storage::Gradients) continue;
    if (t.storage == Storage::Messages) continue;
    if (std::exchange(done[t.name], true)) continue;
    std::vector<N>& numbers = run.numbers(t.storage, t.name);
    const auto given = fixed.find(t.name);
    // By name: graphs have their tensors in different orders.
    std::vector<unsigned> seeds(t.name.begin(), t.name.end());
    seeds.push_back(seed);
    std::seed_seq sequence(seeds.begin(), seeds.end());
    std::mt19937 random(sequence);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (given != fixed.end()) {
        numbers[i] = N(given->second.at(i % given->second.size()));
        continue;
      }
      numbers[i] = N(0.7 * normal(random));
      if constexpr (std::is_same_v<N, Dual>) {
        if (t.storage == Storage::Weights) numbers[i].tangent = normal(random);
      } else {
        if (t.storage == Storage::Weights) normal(random);
      }
    }
  }
}

/// The adjoint identity of a pass, all its losses together. Weights without a gradient have no
/// tangent. The numbers of the tensor `broken` are some thousandths too large.
inline AdjointPair adjoint_pair(const TrainingPass& pass, const SymbolValues& symbols,
                                const FixedInputs& fixed, unsigned seed,
                                std::optional<TensorId> broken = {}) {
  PlainRun<Dual> run(pass.graph, symbols);
  fill(run, pass.graph, fixed, seed);
  std::map<std::string, bool> trained;
  for (const TensorId id : pass.graph.outputs()) {
    const TensorInfo& t = pass.graph.tensor(id);
    if (t.storage == Storage::Gradients) trained[t.name] = true;
  }
  for (const TensorInfo& t : pass.graph.tensors()) {
    if (t.storage != Storage::Weights || trained.contains(t.name)) continue;
    for (Dual& x : run.numbers(Storage::Weights, t.name)) x.tangent = 0;
  }
  run.run([&](const Node& node, const CountedWork& /*counted*/) {
    if (!broken || std::count(node.outputs.begin(), node.outputs.end(), *broken) == 0) return;
    std::vector<Dual>& numbers = run.numbers(*broken);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i].value += 1e-3 * static_cast<double>(1 + i % 5) * (1 + std::abs(numbers[i].value));
    }
  });
  AdjointPair pair;
  for (const TensorId id : pass.graph.outputs()) {
    const TensorInfo& t = pass.graph.tensor(id);
    if (t.storage != Storage::Gradients) {
      pair.forward += run.numbers(id).at(0).tangent;
      continue;
    }
    const std::vector<Dual>& weights = run.numbers(Storage::Weights, t.name);
    const std::vector<Dual>& gradients = run.numbers(Storage::Gradients, t.name);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      pair.backward += gradients[i].value * weights[i].tangent;
      pair.size += std::abs(gradients[i].value * weights[i].tangent);
    }
  }
  return pair;
}

/// ⟨ȳ, J·v⟩ by central differences along the tangents v that adjoint_pair() has: what the losses
/// differ by at w + h·v and w - h·v, over 2h. `rounding`: the slope's error by the losses' last
/// digit.
struct CentralDifference {
  double slope = 0;
  double rounding = 0;
};
inline CentralDifference central_difference(const TrainingPass& pass, const SymbolValues& symbols,
                                            const FixedInputs& fixed, unsigned seed) {
  constexpr double h = 1e-5;
  PlainRun<Dual> at(pass.graph, symbols);
  fill(at, pass.graph, fixed, seed);
  CentralDifference difference;
  for (const double step : {h, -h}) {
    PlainRun<double> run(pass.graph, symbols);
    fill(run, pass.graph, fixed, seed);
    std::set<std::string> moved;
    for (const TensorId id : pass.graph.outputs()) {
      const TensorInfo& t = pass.graph.tensor(id);
      if (t.storage != Storage::Gradients || !moved.insert(t.name).second) continue;
      std::vector<double>& weights = run.numbers(Storage::Weights, t.name);
      const std::vector<Dual>& along = at.numbers(Storage::Weights, t.name);
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += step * along[i].tangent;
    }
    run.run();
    for (const TensorId id : pass.graph.outputs()) {
      if (pass.graph.tensor(id).storage == Storage::Gradients) continue;
      const double slope = run.numbers(id).at(0) / (2 * step);
      difference.slope += slope;
      difference.rounding += std::abs(slope) * std::numeric_limits<double>::epsilon();
    }
  }
  return difference;
}

/// Runs the pass on real numbers and compares every operator's work with the formulas.
inline PlainRun<double> counted_run(const Graph& graph, const SymbolValues& symbols,
                                    const FixedInputs& fixed, unsigned seed) {
  PlainRun<double> run(graph, symbols);
  fill(run, graph, fixed, seed);
  run.run_counted([](const Node& node, const CountedWork& counted, const CountedWork& analytic) {
    CAPTURE(node.label);
    CAPTURE(name(node.op));
    CHECK(counted.flops == analytic.flops);
    CHECK(counted.read == analytic.read);
    CHECK(counted.written == analytic.written);
  });
  return run;
}

}  // namespace kvcast::execute
