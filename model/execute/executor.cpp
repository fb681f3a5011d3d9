#include "model/execute/executor.h"

#include <algorithm>
#include <limits>

#include "model/base/interrupt.h"
#include "model/base/stopwatch.h"
#include "model/execute/exchange.h"
#include "model/execute/kernels.h"
#include "model/execute/messenger.h"
#include "model/execute/step_rows.h"
#include "model/execute/token_places.h"
#include "model/forward/state_space.h"
#include "model/graph/work.h"

namespace kvcast::execute {
namespace {

Shape shape_of(const TensorInfo& info, std::span<const std::uint64_t> symbols) {
  Shape shape;
  for (const Count& dim : info.shape) shape.push_back(dim.at(symbols));
  return shape;
}

void set_shape(Operand& operand, std::span<const std::uint64_t> symbols) {
  operand.shape = shape_of(*operand.info, symbols);
  operand.batch_stride = operand.shape.sequence_elements();
}

/// Of a cache's rows before the pass, with its own, or after it has shrunk.
std::span<const std::uint32_t> places_of(const Graph& graph, const TensorInfo& info,
                                         const std::string& cache, const StepRows& step) {
  if (is_state(cache)) {
    const bool scanned = info.producer.has_value();  // a StateScan's, in the place of the last one
    return step.state_places.at(scanned ? 1 : kept_state_rows(info));
  }
  if (!info.producer) return step.cached_places;
  const bool shrunk = std::holds_alternative<CacheEvict>(graph.node(*info.producer).op);
  return shrunk ? step.kept_places : step.all_places;
}

bool is_appended_state(const Graph& graph, const TensorInfo& info, const std::string& cache) {
  return is_state(cache) && info.producer &&
         std::holds_alternative<CacheAppend>(graph.node(*info.producer).op);
}

/// Of a step's CacheAppend to a state: puts the kept rows of each sequence before its new ones, and
/// keeps the last of all.
template <typename N>
void carry_state(const Call& call) {
  const Operand& state = call.inputs[0];
  const std::size_t kept = kept_state_rows(*state.info);
  const std::size_t features = call.output.shape.back();
  std::vector<float> narrow(state.form != nullptr ? features : 0);
  std::vector<std::byte> rounded(state.form != nullptr ? state.form->row_bytes() : 0);
  N* first = call.output.sequence<N>(0);
  std::size_t row = 0;
  for (const SequenceRows& s : call.step->sequences) {
    // New rows too are as the cache would have them.
    for (std::size_t i = kept; state.form != nullptr && i < kept + s.tokens; ++i) {
      N* const x = first + i * features;
      std::copy_n(x, features, narrow.data());
      narrow_row(*state.form, narrow.data(), rounded.data());
      widen_row(*state.form, rounded.data(), 0, features, narrow.data());
      std::copy_n(narrow.data(), features, x);
    }
    const N* const last = first + s.tokens * features;
    for (std::size_t i = 0; i < kept; ++i) {
      N* const to = first + i * features;
      if (state.form == nullptr) {
        std::copy_n(state.element<N>(0, (row + i) * features), features, to);
      } else {
        widen_row(*state.form, state.narrow_row(0, row + i), 0, features, narrow.data());
        std::copy_n(narrow.data(), features, to);
      }
    }
    for (std::size_t i = 0; i < kept; ++i) {
      const N* const from = last + i * features;
      if (state.form == nullptr) {
        std::copy_n(from, features, state.element<N>(0, (row + i) * features));
      } else {
        std::copy_n(from, features, narrow.data());
        narrow_row(*state.form, narrow.data(), state.narrow_row(0, row + i));
      }
    }
    first += (kept + s.tokens) * features;
    row += kept;
  }
}

/// Of the experts that a Route has chosen.
std::size_t num_distinct(const Operand& chosen, std::size_t num_experts, DType dtype) {
  std::vector<bool> read(num_experts, false);
  with_numbers(dtype, chosen.data, [&](const auto* experts) {
    for (std::size_t i = 0; i < chosen.shape.elements(); ++i) {
      read[static_cast<std::size_t>(experts[i])] = true;
    }
  });
  return static_cast<std::size_t>(std::count(read.begin(), read.end(), true));
}

/// Tokens that go to other members than this one, or come from them.
std::size_t num_moved(const std::vector<std::vector<std::size_t>>& tokens, std::size_t member) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) sum += i == member ? 0 : tokens[i].size();
  return sum;
}

/// Visible pairs of all sequences, by what a FirstSeen has found.
std::size_t num_seen(const Call& call, DType dtype) {
  const std::size_t queries = call.output.shape[1];
  const std::size_t past = call.inputs[0].shape[1] - queries;
  std::size_t pairs = 0;
  with_numbers(dtype, call.output.data, [&](const auto* first) {
    for (std::size_t i = 0; i < call.output.shape.elements(); ++i) {
      pairs += past + i % queries + 1 - static_cast<std::size_t>(first[i]);
    }
  });
  return pairs;
}

}  // namespace

Executor::Executor(const Graph& graph, const TensorStore& store, Loops loops, DType dtype)
    : graph_(graph),
      loops_(loops),
      dtype_(dtype),
      cache_names_(graph.tensors().size()),
      last_use_(graph.tensors().size(), 0),
      late_(graph.tensors().size(), false),
      operands_(graph.tensors().size()) {
  KVCAST_ASSERT(dtype == DType::FP32 || (dtype == DType::FP64 && loops == Loops::Counting));
  for (std::size_t i = 0; i < graph.tensors().size(); ++i) {
    const TensorInfo& info = graph.tensors()[i];
    if (info.storage == Storage::KvCache && !info.producer) cache_names_[i] = info.name;
    Operand& operand = operands_[i];
    operand.info = &info;
    if (!is_stored(info)) {
      bound_by_runs_.push_back(i);
      continue;
    }
    KVCAST_ASSERT(std::all_of(info.shape.begin(), info.shape.end(),
                              [](const Count& dim) { return dim.is_constant(); }));
    set_shape(operand, {});
    store.bind(info, operand);
  }
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (const TensorId id : node.inputs) last_use_[id.index] = n;
    // What a cache operator leaves is the state after it of the cache that it reads.
    for (const TensorId id : node.outputs) {
      if (graph.tensor(id).storage != Storage::KvCache) continue;
      const auto read = std::find_if(node.inputs.begin(), node.inputs.end(),
                                     [&](TensorId in) { return !cache_names_[in.index].empty(); });
      KVCAST_ASSERT(read != node.inputs.end());
      cache_names_[id.index] = cache_names_[read->index];
    }
    const auto add_heads = [&](std::size_t input, const Heads& heads) {
      head_dims_.emplace(cache_names_[node.inputs[input].index], heads.head_dim);
    };
    if (const auto* op = std::get_if<TiledAttention>(&node.op)) {
      add_heads(1, op->heads);
      add_heads(2, op->value_heads());
    } else if (const auto* scores = std::get_if<AttentionScores>(&node.op)) {
      add_heads(1, scores->heads);
    } else if (const auto* values = std::get_if<AttentionValues>(&node.op)) {
      add_heads(1, values->heads);
    }
    std::optional<Symbol> found;
    if (const auto* op = std::get_if<MissingTokens>(&node.op)) found = op->missing;
    if (const auto* op = std::get_if<DispatchTokens>(&node.op)) {
      KVCAST_ASSERT(op->layers == 1);  // see DevicePlace::counts_by_layer
      found = op->pairs;
      spread_experts_.insert(op->distinct);
    }
    if (!found) continue;
    for (std::size_t i = 0; i < graph.tensors().size(); ++i) {
      for (const Count& dim : graph.tensors()[i].shape) {
        if (dim.depends_on(*found)) late_[i] = true;
      }
    }
  }
  for (const TensorId id : graph.outputs()) {
    last_use_[id.index] = graph.nodes().size();
    const bool kept = !cache_names_[id.index].empty() || is_stored(graph.tensor(id));
    if (!kept) results_.push_back(id.index);
  }
}

void Executor::reserve(CacheStore& cache, std::span<const std::uint64_t> symbols) const {
  for (std::size_t i = 0; i < graph_.tensors().size(); ++i) {
    if (cache_names_[i].empty()) continue;
    const TensorInfo& info = graph_.tensors()[i];
    const Shape shape = shape_of(info, symbols);
    // An earlier pass may have held more than the last one: chunks begin anew.
    const std::uint64_t most = std::min(info.most_rows, symbols[symbol::kv_len.id]);
    const auto head_dim = head_dims_.find(cache_names_[i]);
    cache.reserve(cache_names_[i], shape[0], std::max<std::size_t>(shape[1], most), shape[2],
                  info.most_rows > 0, info.dtype,
                  head_dim == head_dims_.end() ? 0 : head_dim->second);
  }
}

void Executor::slide_caches(std::span<const std::uint64_t> symbols, CacheStore& cache) const {
  for (std::size_t i = 0; i < graph_.tensors().size(); ++i) {
    const TensorInfo& info = graph_.tensors()[i];
    if (cache_names_[i].empty() || info.producer) continue;
    const std::size_t rows = info.shape[1].at(symbols);
    if (info.most_rows == 0 && rows > 0) continue;
    std::size_t after = 0;
    for (std::size_t j = i; j < graph_.tensors().size(); ++j) {
      if (cache_names_[j] != cache_names_[i]) continue;
      after = std::max<std::size_t>(after, graph_.tensors()[j].shape[1].at(symbols));
    }
    cache.slide(cache_names_[i], rows, after);
  }
}

/// Where each intermediate result lies in the arena.
struct Executor::Layout {
  static constexpr std::size_t elsewhere = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t>
      first;  ///< float, by tensor; elsewhere: an input, a weight, a cache, the result
  std::size_t extent = 0;
};

Executor::Layout Executor::lay_out(const std::vector<Operand>& operands) const {
  Layout layout{std::vector<std::size_t>(operands.size(), Layout::elsewhere), 0};
  RangePlanner planner;
  const std::size_t width = floats_in(dtype_);
  // Of no elements too: ranges that begin at one place would be taken for one another.
  const auto room = [&](std::size_t t) {
    return std::max<std::size_t>(operands[t].shape.elements() * width, 1);
  };
  for (std::size_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& node = graph_.nodes()[n];
    std::size_t reused = operands.size();  // the input whose place the first output takes
    for (const TensorId id : node.outputs) {
      const std::size_t out = id.index;
      if (operands[out].data != nullptr || late_[out]) continue;
      const std::size_t first = node.inputs.empty() ? out : node.inputs[0].index;
      const bool in_place = loops_ == Loops::Fast && works_in_place(node.op) && first != out &&
                            id == node.output() && layout.first[first] != Layout::elsewhere &&
                            last_use_[first] == n &&
                            operands[first].shape.elements() == operands[out].shape.elements();
      layout.first[out] = in_place ? layout.first[first] : planner.take(room(out));
      if (in_place) reused = first;
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::size_t in = node.inputs[i].index;
      const auto end = node.inputs.begin() + static_cast<std::ptrdiff_t>(i);
      const bool again = std::find(node.inputs.begin(), end, node.inputs[i]) != end;
      if (in == reused || again || last_use_[in] != n) continue;
      if (layout.first[in] == Layout::elsewhere) continue;
      planner.give(layout.first[in], room(in));
    }
  }
  layout.extent = planner.extent();
  return layout;
}

Output Executor::run(std::span<const std::uint64_t> symbols, const Inputs& inputs,
                     CacheStore& cache, Arena& arena, const Observer& observer,
                     Messenger* messenger, LateSizes* late, const StepRows* step) const {
  std::vector<Operand> operands = operands_;
  std::vector<std::vector<double>> widened;  // inputs
  std::vector<Floats> appended;              // states
  if (step == nullptr) slide_caches(symbols, cache);
  for (const std::size_t i : bound_by_runs_) {
    const TensorInfo& info = graph_.tensors()[i];
    Operand& operand = operands[i];
    if (late_[i]) continue;
    set_shape(operand, symbols);
    if (step != nullptr && is_appended_state(graph_, info, cache_names_[i])) {
      operand.data =
          appended.emplace_back(allocate_floats(operand.shape.elements() * floats_in(dtype_)))
              .get();
    } else if (!cache_names_[i].empty() && step != nullptr) {
      cache.bind_pool(cache_names_[i], places_of(graph_, info, cache_names_[i], *step), operand);
    } else if (!cache_names_[i].empty()) {
      cache.bind(cache_names_[i], operand);
    } else if (!info.producer && info.storage != Storage::Messages) {
      const auto found = inputs.find(info.name);
      KVCAST_ASSERT(found != inputs.end() && found->second.size() == operand.shape.elements());
      operand.data = const_cast<float*>(found->second.data());
      if (dtype_ == DType::FP64) {
        auto& wide = widened.emplace_back(found->second.begin(), found->second.end());
        operand.data = reinterpret_cast<float*>(wide.data());
      }
    }
  }

  lay_messages(graph_, symbols, operands, dtype_, messenger);

  Output result;
  const std::size_t width = floats_in(dtype_);
  std::size_t result_floats = 0;
  for (const std::size_t r : results_) result_floats += operands[r].shape.elements() * width;
  if (!results_.empty()) {
    result.shape = operands[results_.front()].shape;
    result.data = allocate_floats(result_floats);
  }
  float* next = result.data.get();
  for (const std::size_t r : results_) {
    operands[r].data = next;
    next += operands[r].shape.elements() * width;
  }
  const Layout layout = lay_out(operands);
  float* const block = arena.reserve(layout.extent);

  SymbolValues values(symbols.begin(), symbols.end());
  std::map<std::size_t, Floats> late_data;  // by tensor
  std::vector<Operand> node_inputs;
  std::optional<Symbol> experts;  // Route::distinct
  std::set<int> routed;           // layers, which training may compute again
  std::size_t num_read = 0;
  MovedTokens moved_tokens;  // by the last DispatchTokens
  const auto find = [&](Symbol symbol, std::size_t value) {
    KVCAST_ASSERT(late != nullptr);
    late->found.push_back({symbol, value});
    late->symbols->resolve_newest(values, late->found);
  };
  for (std::size_t n = 0; n < graph_.nodes().size(); ++n) {
    stop_if_interrupted();
    const Node& node = graph_.nodes()[n];
    node_inputs.clear();
    for (const TensorId id : node.inputs) node_inputs.push_back(operands[id.index]);
    Skipped skipped;
    Exchanged exchanged;
    Call call{node, node_inputs, operands[node.output().index], values, &skipped, messenger};
    call.exchanged = &exchanged;
    call.moved_tokens = &moved_tokens;
    call.step = step;
    const Stopwatch watch;
    if (const auto* op = std::get_if<MissingTokens>(&node.op)) {
      find(op->missing, num_missing(call, dtype_));
    }
    if (const auto* op = std::get_if<DispatchTokens>(&node.op)) {
      moved_tokens = find_moved_tokens(call, *op, dtype_);
      find(op->pairs, moved_tokens.pairs);
      if (op->group.size > 1) {
        find(op->sent, num_moved(moved_tokens.sent, op->member));
        find(op->received, num_moved(moved_tokens.received, op->member));
      }
    }
    for (const TensorId id : node.outputs) {
      Operand& output = operands[id.index];
      if (late_[id.index]) {
        set_shape(output, values);
        if (!cache_names_[id.index].empty()) {
          cache.bind(cache_names_[id.index], output);
        } else {
          Floats& data = late_data[id.index];
          data = allocate_floats(output.shape.elements() * floats_in(dtype_));
          output.data = data.get();
        }
      }
      if (output.data == nullptr) output.data = block + layout.first[id.index];
    }
    // A node's results follow each other.
    call.more_outputs =
        std::span(operands).subspan(node.output().index + 1, node.outputs.size() - 1);

    CountedWork counted;
    if (loops_ == Loops::Fast) {
      run_fast(call);
    } else {
      counted = run_plain(call, dtype_);
    }
    if (step != nullptr &&
        is_appended_state(graph_, *call.output.info, cache_names_[node.output().index])) {
      dtype_ == DType::FP64 ? carry_state<double>(call) : carry_state<float>(call);
    }
    const auto* route = std::get_if<Route>(&node.op);
    if (route != nullptr && !spread_experts_.contains(route->distinct) &&
        routed.insert(node.layer).second) {
      experts = route->distinct;
      num_read += num_distinct(call.output, route->routing.num_experts, dtype_);
    }
    if (const auto* op = std::get_if<DispatchTokens>(&node.op)) {
      find(op->distinct, num_distinct(call.more_outputs[0], op->experts_here, dtype_));
    }
    if (const auto* op = std::get_if<FirstSeen>(&node.op)) find(op->pairs, num_seen(call, dtype_));
    if (observer) {
      observer({n, watch.seconds(), loops_ == Loops::Counting ? &counted : nullptr, skipped,
                exchanged, &call});
    }
    for (const TensorId id : node.inputs) {
      if (last_use_[id.index] == n) late_data.erase(id.index);
    }
  }
  for (std::size_t i = 0; step == nullptr && i < graph_.tensors().size(); ++i) {
    if (!cache_names_[i].empty()) cache.hold(cache_names_[i], operands[i].shape[1]);
  }
  if (late != nullptr && experts) {
    late->found.push_back({*experts, num_read});
    late->symbols->resolve_newest(values, late->found);
  }
  if (late != nullptr) late->values = std::move(values);
  if (messenger != nullptr) messenger->finish();
  return result;
}

}  // namespace kvcast::execute
