#include "model/record/step_recording.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/config/sharding.h"
#include "model/forward/mlp.h"
#include "model/forward/state_space.h"
#include "model/graph/work.h"

namespace kvcast {
namespace {

/// Operators whose work depends on rows and elements only, not on the sequences that they are of.
bool works_by_rows(const Op& op) {
  return is_any<Embedding, Linear, Elementwise, GatedActivation, RmsNorm, LayerNorm, Rope,
                CacheAppend, LastToken, RopeAngles, RotateHalf, ScaleByPosition, Route,
                ExpertLinear, CombineExperts, RepeatHeads, CausalConv, MixStreams, RowMean,
                SliceFeatures, Collective, JoinHeads, Send, Receive>(op);
}

std::uint64_t triangle(std::uint64_t n) {
  return n % 2 == 0 ? checked_multiply(n / 2, n + 1) : checked_multiply(n, (n + 1) / 2);
}

/// Pairs of the first n tokens with the keys that they see.
std::uint64_t pairs_of_first(const VisibleRange& range, std::uint64_t n) {
  if (range.chunk > 0) {
    return checked_add(checked_multiply(n / range.chunk, triangle(range.chunk)),
                       triangle(n % range.chunk));
  }
  if (range.window == 0 || n <= range.window) return triangle(n);
  return checked_add(triangle(range.window), checked_multiply(n - range.window, range.window));
}

std::uint64_t num_visible_keys(const VisibleRange& range, const StepSequence& s) {
  const std::uint64_t before = checked_add(s.cached, s.tokens);
  if (range.chunk > 0) return before - s.cached / range.chunk * range.chunk;
  return range.window == 0 ? before : std::min(before, s.tokens + range.window - 1);
}

/// Visible pairs and keys of one sequence under a causal mask.
struct OfSequence {
  Count pairs;
  Count keys;
};
OfSequence visible(const VisibleRange& range, const Count& tokens, const Count& cached,
                   Symbols& symbols) {
  const Mask mask{true, range.window, cached, range.chunk};
  return {visible_pairs(mask, tokens, cached + tokens, symbols),
          visible_keys(mask, tokens, cached + tokens, symbols)};
}

/// Pairs and chunks of one sequence in a StateScan.
struct ScannedSequence {
  Count pairs;
  Count chunks;
};
ScannedSequence scanned(std::uint64_t chunk, const Count& tokens, Symbols& symbols) {
  Mask mask;
  mask.chunk = chunk;
  return {visible_pairs(mask, tokens, tokens, symbols), symbols.ceil_divide(tokens, chunk)};
}

class StepGraph {
 public:
  StepGraph(Recording& recording, const Sharding* sharding)
      : symbols_(recording.symbols),
        sums_{sum("step_tokens", length_), sum("step_cached", cached_), {}, {}, {}},
        experts_(count_experts(
            symbols_, recording.model.decoder, "step_experts",
            [&](std::size_t layer) {
              const bool is_here = sharding == nullptr || (layer >= sharding->first_layer() &&
                                                           layer < sharding->end_layer());
              return is_here ? Count(sums_.tokens) : Count();
            },
            sharding)) {}

  Graph of(const Graph& prefill) {
    Graph step;
    std::vector<TensorInfo> made;  // by a node, whose results follow each other
    for (const Node& node : prefill.nodes()) {
      const auto* const dispatch = std::get_if<DispatchTokens>(&node.op);
      if (dispatch != nullptr) pairs_ = of_layer(dispatch->pairs, dispatch->layers);
    }
    for (const TensorInfo& t : prefill.tensors()) {
      TensorInfo info = t;
      if (const std::optional<Count> rows = state_rows(prefill, t, step)) {
        info.shape[0] = 1;
        info.shape[1] = *rows;
      } else if (t.storage == Storage::KvCache) {
        info.shape[0] = 1;  // windows may hold less, which no operator's work depends on
        info.shape[1] = cache_rows(prefill, t);
      } else if (t.storage != Storage::Weights) {
        side_by_side(info.shape);
      }
      if (!t.producer) {
        step.add_tensor(std::move(info));
        continue;
      }
      Node node = prefill.node(*t.producer);
      made.push_back(std::move(info));
      if (made.size() < node.outputs.size()) continue;
      put_sums(node.op);
      step.add_node(std::move(node), std::exchange(made, {}));
    }
    for (const TensorId output : prefill.outputs()) step.mark_output(output);
    return step;
  }

  const StepSums& sums() const { return sums_; }

 private:
  static Count of_layer(Symbol of_all, std::uint64_t layers) {
    return Count(of_all).scaled(1, static_cast<std::int64_t>(layers));
  }
  Symbol sum(const std::string& name, const Count& of_one) { return sum(name, of_one, of_one); }
  /// Of sequences that have `most` at most.
  Symbol sum(const std::string& name, const Count& of_one, const Count& most) {
    const Count batch = symbol::batch;
    return symbols_.found_by_run(batch * most, name, batch * of_one);
  }

  /// Rows of all sequences in a state, as it is once a sequence has enough tokens; none: no state.
  std::optional<Count> state_rows(const Graph& prefill, const TensorInfo& t,
                                  const Graph& step) const {
    if (t.storage != Storage::KvCache) return {};
    const Count batch = symbol::batch;
    if (!t.producer) {
      if (!is_state(t.name)) return {};
      return batch * kept_state_rows(t);
    }
    const Node& node = prefill.node(*t.producer);
    if (std::holds_alternative<StateScan>(node.op)) return batch;
    const TensorId before = node.inputs[0];
    if (!is_state(prefill.tensor(before).name)) return {};
    return step.tensor(before).shape[1] + sums_.tokens;
  }

  Count cache_rows(const Graph& prefill, const TensorInfo& t) {
    const Count all = Count(sums_.cached) + sums_.tokens;
    if (!t.producer) return sums_.cached;
    const auto* const evict = std::get_if<CacheEvict>(&prefill.node(*t.producer).op);
    if (evict == nullptr) return all;
    if (!sums_.evicted) {
      sums_.evicted = {sum("step_dropped", evict->dropped), sum("step_moved", evict->moved),
                       evict->kept_first};
    }
    return all - sums_.evicted->dropped;
  }

  /// [batch, prompt_len, ...] and the like in one row.
  void side_by_side(std::vector<Count>& shape) const {
    if (shape[0] == length_) shape[0] = sums_.tokens;  // positions, and their rows of a table
    if (shape.size() < 2 || !(shape[0] == Count(symbol::batch) || shape[0] == Count(1))) return;
    if (shape[1] == length_) {
      shape[1] = sums_.tokens;
    } else if (shape[1] == cached_) {
      shape[1] = sums_.cached;
    } else if (shape[1] == Count(symbol::kv_len)) {
      shape[1] = Count(sums_.cached) + sums_.tokens;
    } else if (pairs_ && shape[1] == *pairs_) {
      shape[1] = of_layer(*experts_->pairs, experts_->layers);
    } else if (shape[1] == Count(1)) {
      shape[1] = shape[0];  // a row of each sequence
    } else {
      throw Error("a step of several sequences cannot be made of rows that it has no sum for");
    }
    shape[0] = 1;
  }

  void put_sums(Op& op) {
    if (auto* const attention = std::get_if<TiledAttention>(&op)) {
      const VisibleRange range{attention->mask.window, attention->mask.chunk};
      if (!sums_.visible.contains(range)) {
        const OfSequence one = visible(range, length_, cached_, symbols_);
        const std::uint64_t limit = std::max(range.window, range.chunk);
        const std::string suffix = limit > 0 ? "_" + std::to_string(limit) : "";
        // One token may see more than one that comes later, in the next chunk.
        const Count rows = cached_ + length_;
        sums_.visible[range] = {sum("step_pairs" + suffix, one.pairs, length_ * rows),
                                sum("step_keys" + suffix, one.keys, rows)};
      }
      attention->visible_pairs = sums_.visible[range].pairs;
      attention->visible_keys = sums_.visible[range].keys;
    } else if (auto* const evict = std::get_if<CacheEvict>(&op)) {
      evict->dropped = sums_.evicted->dropped;
      evict->moved = sums_.evicted->moved;
    } else if (auto* const route = std::get_if<Route>(&op)) {
      route->distinct = experts_->distinct;
    } else if (auto* const scan = std::get_if<StateScan>(&op)) {
      if (!sums_.scanned.contains(scan->chunk)) {
        const ScannedSequence one = scanned(scan->chunk, length_, symbols_);
        const std::string suffix = "_" + std::to_string(scan->chunk);
        sums_.scanned[scan->chunk] = {sum("step_scan_pairs" + suffix, one.pairs),
                                      sum("step_chunks" + suffix, one.chunks),
                                      sum("step_limited" + suffix, length_)};
      }
      // transformers limits no steps of single tokens.
      if (scan->num_limits() > 0) scan->limited = sums_.scanned[scan->chunk].limited;
      scan->pairs = sums_.scanned[scan->chunk].pairs;
      scan->chunks = sums_.scanned[scan->chunk].chunks;
    } else if (auto* const experts = std::get_if<ExpertLinear>(&op)) {
      experts->distinct = experts_->distinct;
    } else if (auto* const dispatch = std::get_if<DispatchTokens>(&op)) {
      dispatch->pairs = *experts_->pairs;
      dispatch->distinct = experts_->distinct;
      if (dispatch->group.size == 1) return;
      dispatch->sent = *experts_->sent;
      dispatch->received = *experts_->received;
    } else if (auto* const back = std::get_if<ReturnTokens>(&op)) {
      if (back->group.size == 1) return;
      back->sent = *experts_->received;
      back->received = *experts_->sent;
    } else if (!works_by_rows(op)) {
      throw Error("a step of several sequences", "the operator " + std::string(name(op)),
                  "tiled attention over a cache of all keys and values");
    }
  }

  const Count length_ = symbol::prompt_len;
  const Count cached_ = Count(symbol::kv_len) - symbol::prompt_len;
  Symbols& symbols_;
  StepSums sums_;
  std::optional<ExpertCounts> experts_;  ///< that the tokens of all sequences read
  std::optional<Count> pairs_;           ///< of a token and an expert here, in the prefill's layers
};

/// Where some caches let go of rows, all do.
void check_caches(const Graph& prefill) {
  std::size_t caches = 0;
  std::size_t bounded = 0;
  for (const TensorInfo& t : prefill.tensors()) {
    if (t.storage == Storage::KvCache && !t.producer) ++caches;
  }
  for (const Node& node : prefill.nodes()) {
    if (is_any<CacheEvict>(node.op)) ++bounded;
  }
  if (bounded == 0 || bounded == caches) return;
  throw Error("a step of several sequences",
              "layers that keep unequal numbers of a sequence's rows",
              "layers that all keep as many");
}

}  // namespace

StepSums add_step(Recording& recording, const std::optional<DevicePlace>& place) {
  check_caches(recording.prefill());
  std::optional<Sharding> sharding;
  if (place) sharding.emplace(recording.model, *place);
  StepGraph step(recording, sharding ? &*sharding : nullptr);
  RecordedPass pass{.name = std::string(step_name), .part = TtftPart::Base};
  pass.graph = step.of(recording.prefill());
  pass.tokens = step.sums().tokens;
  recording.passes.push_back(std::move(pass));
  return step.sums();
}

StepSizes::StepSizes(const Recording& recording, const StepSums& sums)
    : recording_(recording), sums_(sums), values_(recording.symbols.size()) {
  found_ = {{sums.tokens, 0}, {sums.cached, 0}};
  for (const auto& [range, visible] : sums.visible) {
    found_.push_back({visible.pairs, 0});
    found_.push_back({visible.keys, 0});
  }
  for (const auto& [chunk, scanned] : sums.scanned) {
    found_.push_back({scanned.pairs, 0});
    found_.push_back({scanned.chunks, 0});
    found_.push_back({scanned.limited, 0});
  }
  if (!sums.evicted) return;
  found_.push_back({sums.evicted->dropped, 0});
  found_.push_back({sums.evicted->moved, 0});
}

void StepSizes::clear() {
  sequences_ = 0;
  most_ = {};
  for (FoundCount& f : found_) f.value = 0;
}

void StepSizes::add(const StepSequence& s) {
  ++sequences_;
  most_.tokens = std::max(most_.tokens, s.tokens);
  most_.cached = std::max(most_.cached, s.cached);
  auto next = found_.begin();
  const auto sum = [&next](std::uint64_t value) {
    next->value = checked_add(next->value, value);
    ++next;
  };
  sum(s.tokens);
  sum(s.cached);
  for (const auto& [range, symbols] : sums_.visible) {
    sum(pairs_of_first(range, checked_add(s.cached, s.tokens)) - pairs_of_first(range, s.cached));
    sum(num_visible_keys(range, s));
  }
  for (const auto& [chunk, symbols] : sums_.scanned) {
    sum(pairs_of_first({0, chunk}, s.tokens));
    sum(s.tokens / chunk + (s.tokens % chunk > 0 ? 1 : 0));
    sum(s.tokens > 1 ? s.tokens : 0);
  }
  if (!sums_.evicted) return;
  sum(s.dropped);
  sum(s.dropped > 0 ? s.cached + s.tokens - s.dropped - sums_.evicted->kept_first : 0);
}

void StepSizes::add_rows(std::uint64_t sequences) {
  sequences_ += sequences;
  most_.tokens = std::max<std::uint64_t>(most_.tokens, 1);
  found_[0].value += sequences;
  const std::size_t scanned = 2 + 2 * sums_.visible.size();
  for (std::size_t i = 0; i < sums_.scanned.size(); ++i) {
    found_[scanned + 3 * i].value += sequences;      // a pair of each
    found_[scanned + 3 * i + 1].value += sequences;  // and a chunk
  }
}

const SymbolValues& StepSizes::values() {
  KVCAST_ASSERT(sequences_ > 0);
  values_[symbol::batch.id] = sequences_;
  values_[symbol::prompt_len.id] = most_.tokens;
  values_[symbol::kv_len.id] = most_.cached + most_.tokens;
  recording_.symbols.resolve(values_, found_);
  return values_;
}

SymbolValues step_sizes(const Recording& recording, const StepSums& sums,
                        std::span<const StepSequence> sequences) {
  StepSizes sizes(recording, sums);
  for (const StepSequence& s : sequences) sizes.add(s);
  return sizes.values();
}

}  // namespace kvcast
