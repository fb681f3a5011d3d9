/// Runs a recorded graph on real tensors.
#pragma once

#include <functional>
#include <map>
#include <set>
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

/// A graph's inputs by name: token ids as whole numbers, mel features, position ids. Always fp32,
/// also where the executor computes in fp64.
using Inputs = std::map<std::string, std::span<const float>, std::less<>>;

/// What happened at one node; told when it has ended.
struct NodeRun {
  std::size_t node = 0;
  double seconds = 0;
  const CountedWork* counted = nullptr;  ///< null with fast loops
  Skipped skipped = {};
  Exchanged exchanged = {};
  const Call* call = nullptr;  ///< its operands; valid until the observer returns
};
using Observer = std::function<void(const NodeRun&)>;

/// A pass's logits, in the executor's dtype. Empty when it has none. Of several results, as losses
/// are, `shape` is the first one's; the others lie behind it.
struct Output {
  Shape shape;
  Floats data;
};

/// Sizes that a pass finds while it runs (MissingTokens, FirstSeen, Route, DispatchTokens).
struct LateSizes {
  const Symbols* symbols = nullptr;
  std::vector<FoundCount> found = {};  ///< the pass adds those that it finds
  SymbolValues values = {};            ///< of all symbols, after the pass
};

class Executor {
 public:
  /// The graph and the store must outlive it. Everything is computed in `dtype`, which the store
  /// and caches must have too: FP32, or FP64 with Loops::Counting.
  Executor(const Graph& graph, const TensorStore& store, Loops loops, DType dtype = DType::FP32);

  /// Before the first pass of these sizes: asks for room in the cache for what the graph appends.
  void reserve(CacheStore& cache, std::span<const std::uint64_t> symbols) const;
  /// Runs one pass. Inputs must match the graph's shapes at these sizes. A graph whose operators
  /// exchange messages needs a messenger; all is sent when run() returns. A graph with
  /// MissingTokens, FirstSeen or DispatchTokens needs `late`; one with Route adds the experts that
  /// it read.
  /// A graph of a step needs `step`, and a cache of pools that hold the step's places.
  Output run(std::span<const std::uint64_t> symbols, const Inputs& inputs, CacheStore& cache,
             Arena& arena, const Observer& observer = nullptr, Messenger* messenger = nullptr,
             LateSizes* late = nullptr, const StepRows* step = nullptr) const;

 private:
  /// Lets go of the rows that this pass no longer reads.
  void slide_caches(std::span<const std::uint64_t> symbols, CacheStore& cache) const;
  struct Layout;
  Layout lay_out(const std::vector<Operand>& operands) const;

  const Graph& graph_;
  Loops loops_;
  DType dtype_;
  std::vector<std::string> cache_names_;          ///< by tensor: the cache that it is a state of
  std::map<std::string, std::size_t> head_dims_;  ///< by cache that attention reads
  std::vector<std::size_t> last_use_;       ///< by tensor: index of the last node that reads it
  std::vector<bool> late_;                  ///< by tensor: the pass finds its size
  std::set<Symbol> spread_experts_;         ///< DispatchTokens::distinct
  std::vector<Operand> operands_;           ///< by tensor: stored ones, and for the others a place
  std::vector<std::size_t> bound_by_runs_;  ///< all tensors but stored ones
  std::vector<std::size_t> results_;        ///< tensor indices: the logits, or the losses
};

}  // namespace kvcast::execute
