/// Runs a recorded graph on real tensors.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/base/count.h"
#include "model/execute/arena.h"
#include "model/execute/cache_store.h"
#include "model/execute/plain_loops.h"
#include "model/execute/weight_store.h"
#include "model/graph/graph.h"

namespace kvcast::execute {

enum class Loops {
  Fast,      ///< vector loops and tiles, on all threads
  Counting,  ///< plain loops that count FLOPs and bytes; weights in their plain form
};

/// A graph's inputs by name: token ids as whole numbers, mel features, position ids. They are fp32
/// whatever the executor computes in.
using Inputs = std::map<std::string, std::span<const float>, std::less<>>;

/// What happened at one node, as it ended.
struct NodeRun {
  std::size_t node = 0;
  double seconds = 0;
  const CountedWork* counted = nullptr;  ///< null with fast loops
  Skipped skipped = {};
  const Call* call = nullptr;  ///< its operands, until the observer returns
};
using Observer = std::function<void(const NodeRun&)>;

/// The result that leaves a pass besides the cache: its logits, in the executor's dtype. Empty when
/// there is none.
struct Output {
  Shape shape;
  Floats data;
};

/// Sizes that a pass finds while it runs (MissingTokens).
struct LateSizes {
  const Symbols* symbols = nullptr;
  std::vector<FoundCount> found = {};  ///< before the pass; after it, by it too
  SymbolValues values = {};            ///< after the pass: of all symbols
};

class Executor {
 public:
  /// The graph and the weights must outlive it. Everything is computed in `dtype`, that of the
  /// weights and of the caches it runs on: FP32, or with Loops::Counting FP64.
  Executor(const Graph& graph, const WeightStore& weights, Loops loops, DType dtype = DType::FP32);

  /// Before the first pass of these sizes: asks for room in the cache for what the graph appends.
  void reserve(CacheStore& cache, std::span<const std::uint64_t> symbols) const;
  /// One pass. Inputs must match the graph's shapes at these sizes.
  /// A graph with Send and Receive needs a messenger; when it returns, all is sent. One with
  /// MissingTokens needs `late`.
  Output run(std::span<const std::uint64_t> symbols, const Inputs& inputs, CacheStore& cache,
             Arena& arena, const Observer& observer = nullptr, Messenger* messenger = nullptr,
             LateSizes* late = nullptr) const;

 private:
  struct Layout;
  Layout lay_out(const std::vector<Operand>& operands) const;

  const Graph& graph_;
  Loops loops_;
  DType dtype_;
  std::vector<std::string> cache_names_;    ///< by tensor: of the cache that it is a state of
  std::vector<std::size_t> last_use_;       ///< by tensor: index of the last node that reads it
  std::vector<bool> late_;                  ///< by tensor: its size is found by the pass
  std::vector<Operand> operands_;           ///< by tensor: weights, and for the others a place
  std::vector<std::size_t> bound_by_runs_;  ///< all tensors but weights
  std::size_t result_;  ///< tensor index of the logits; the number of tensors: there are none
};

}  // namespace kvcast::execute
