#include "model/execute/step_session.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/forward/state_space.h"

namespace kvcast::execute {
namespace {

/// Of a session whose prefill add_step makes a step of.
SessionOptions for_steps(const Architecture& a, SessionOptions options) {
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw Error("steps of " + a.name, found, expected);
  };
  if (a.encoder_decoder) refuse("an encoder-decoder model", "a decoder-only model");
  if (options.logits != Logits::Last) {
    refuse("logits of all positions", "those of each sequence's last token");
  }
  if (options.share || options.place) refuse("a part of the model or prompt", "one device");
  options.chunk = 0;
  options.steps = true;
  return options;
}

/// Positions that a model takes; beyond, keys of one sequence would have the rotations of several
/// tables.
void check_positions(const Architecture& a, std::uint64_t end) {
  std::uint64_t most = a.decoder.position_rows;
  for (const LayerShape& layer : a.decoder.layers) {
    if (!layer.rope || layer.rope->max_positions == 0) continue;
    most = most == 0 ? layer.rope->max_positions : std::min(most, layer.rope->max_positions);
  }
  if (most == 0 || end <= most) return;
  throw Error("a sequence of steps", fmt::format("{} positions", end),
              fmt::format("at most the {} that {} has or was trained for", most, a.name));
}

void check_ids(std::span<const TokenId> tokens, const Architecture& a) {
  if (tokens.empty()) throw Error("a sequence of steps", "no token", "at least one");
  for (const TokenId token : tokens) {
    if (token < a.vocab_size) continue;
    throw Error("a sequence of steps", fmt::format("token id {}", token),
                fmt::format("ids below the vocabulary size {} of {}", a.vocab_size, a.name));
  }
}

/// Of a part's tokens.
std::vector<std::uint64_t> positions_of(const StepPart& part) {
  if (!part.positions.empty()) return {part.positions.begin(), part.positions.end()};
  std::vector<std::uint64_t> positions(part.tokens.size());
  std::iota(positions.begin(), positions.end(), part.cached);
  return positions;
}

/// Tokens that a look-ahead adds to a prompt, at most.
std::uint64_t most_steps(const Recording& recording) {
  std::uint64_t most = 0;
  for (const RecordedPass& pass : recording.helpers()) {
    if (pass.reads == HelperTokens::Next) most = std::max(most, pass.steps);
  }
  return most;
}

/// Of the attention that reads a cache; 0: none does.
std::size_t head_dim_of(const Graph& graph, const std::string& cache) {
  for (const Node& node : graph.nodes()) {
    const auto* const op = std::get_if<TiledAttention>(&node.op);
    if (op == nullptr) continue;
    for (const std::size_t i : {1u, 2u}) {
      TensorId id = node.inputs[i];
      while (graph.tensor(id).storage == Storage::KvCache && graph.tensor(id).producer) {
        id = graph.node(*graph.tensor(id).producer).inputs[0];
      }
      if (graph.tensor(id).name != cache) continue;
      return i == 1 ? op->heads.head_dim : op->value_heads().head_dim;
    }
  }
  return 0;
}

}  // namespace

StepSession::StepSession(const Checkpoint& checkpoint, const SessionOptions& options,
                         const PagedCacheSize& cache)
    : session_(checkpoint, for_steps(checkpoint.architecture(), options)),
      recording_(session_.recording()),
      sums_(add_step(recording_)),
      cache_size_(cache),
      executor_(recording_.pass(step_name).graph, session_.weights(), loops_of(session_.options()),
                options.dtype),
      helpers_(session_.recording(), session_.weights(), loops_of(session_.options()),
               options.dtype),
      cache_(cache_dtype(options)) {
  if (cache.num_blocks == 0 || cache.block_size == 0 ||
      cache.num_blocks > std::numeric_limits<std::uint32_t>::max() / cache.block_size) {
    throw Error("a paged cache",
                fmt::format("{} blocks of {} tokens", cache.num_blocks, cache.block_size),
                "from 1 to 2^32 - 1 tokens in all");
  }
  for (const RecordedPass& pass : recording_.passes) analytic_.emplace_back(pass.graph);
  for (const TensorInfo& t : recording_.pass(step_name).graph.tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    if (is_state(t.name)) {
      const std::uint64_t rows = states_[t.name] = kept_state_rows(t);
      cache_.reserve(t.name, 1, cache.states * rows, t.shape[2].constant(), false, t.dtype);
      continue;
    }
    cache_.reserve(t.name, 1, cache.num_blocks * cache.block_size, t.shape[2].constant(), false,
                   t.dtype, head_dim_of(recording_.pass(step_name).graph, t.name));
  }
  cache_.allocate();
}

void StepSession::check(const StepPart& part) const {
  const auto refuse = [](const std::string& found, const std::string& expected) {
    throw Error("a part of a step", found, expected);
  };
  check_ids(part.tokens, architecture());
  const std::uint64_t length = part.cached + part.tokens.size();
  if (part.blocks.size() < (length + cache_size_.block_size - 1) / cache_size_.block_size) {
    refuse(fmt::format("{} blocks for {} cached and new tokens", part.blocks.size(), length),
           fmt::format("a block for each {}", cache_size_.block_size));
  }
  for (const std::uint32_t block : part.blocks) {
    if (block < cache_size_.num_blocks) continue;
    refuse(fmt::format("block {}", block), fmt::format("one of {}", cache_size_.num_blocks));
  }
  const std::size_t positions = recording_.given_positions ? part.tokens.size() : 0;
  if (part.positions.size() != positions) {
    refuse(
        fmt::format("{} positions of {} tokens", part.positions.size(), part.tokens.size()),
        positions > 0 ? "one of each: a method chooses tokens" : "none: tokens follow each other");
  }
  check_positions(architecture(), positions_of(part).back() + 1);
  if (!has_states() || part.state < cache_size_.states) return;
  refuse(fmt::format("state {}", part.state), fmt::format("one of {}", cache_size_.states));
}

std::uint64_t StepSession::rows_after(const StepPart& part) const {
  const std::uint64_t rows = part.cached + part.tokens.size();
  const bool shrinks = recording_.bound && !part.prompt_goes_on;
  return shrinks ? rows - recording_.bound->too_many(rows) : rows;
}

StepRows StepSession::rows_of(std::span<const StepPart> parts) const {
  StepRows rows;
  rows.block_size = cache_size_.block_size;
  std::vector<std::uint32_t> written;
  for (const StepPart& part : parts) {
    SequenceRows s{part.tokens.size(), part.cached, rows.tokens, rows.cached};
    const std::uint64_t left = rows_after(part);
    s.dropped = s.rows() - left;
    s.first_kept = rows.kept_places.size();
    for (std::size_t i = 0; i < s.rows(); ++i) {
      const std::uint64_t place = part.blocks[i / cache_size_.block_size] * cache_size_.block_size +
                                  i % cache_size_.block_size;
      if (i < s.cached) rows.cached_places.push_back(static_cast<std::uint32_t>(place));
      rows.all_places.push_back(static_cast<std::uint32_t>(place));
      if (i < left) rows.kept_places.push_back(static_cast<std::uint32_t>(place));
    }
    rows.tokens += s.tokens;
    rows.cached += s.cached;
    rows.sequences.push_back(s);
    for (const auto& [name, kept] : states_) rows.state_places.try_emplace(kept);
    for (auto& [kept, places] : rows.state_places) {
      for (std::size_t i = 0; i < kept; ++i) {
        places.push_back(static_cast<std::uint32_t>(part.state * kept + i));
      }
    }
    written.insert(written.end(), rows.all_places.end() - static_cast<std::ptrdiff_t>(s.tokens),
                   rows.all_places.end());
  }
  std::sort(written.begin(), written.end());
  if (std::adjacent_find(written.begin(), written.end()) != written.end()) {
    throw Error("a step", "two tokens in one row of the cache", "a row for each new token");
  }
  return rows;
}

Output StepSession::run(std::size_t pass, const Executor& executor, const SymbolValues& sizes,
                        std::vector<FoundCount> found, const Inputs& inputs, CacheStore& cache,
                        const Observer& observer, const StepRows* rows) {
  const auto observe = [&](const NodeRun& node) {
    if (node.counted != nullptr) work_.counted += *node.counted;
    if (observer) observer(node);
  };
  // A step's sums mean nothing at the sizes of other passes.
  const Recording& recording = rows != nullptr ? recording_ : session_.recording();
  LateSizes late{&recording.symbols, std::move(found), sizes};
  Output output = executor.run(sizes, inputs, cache, arena_, observe, nullptr, &late, rows);
  work_.analytic_flops += analytic_[pass].flops.at(late.values);
  work_.analytic_bytes += analytic_[pass].bytes.at(late.values);
  return output;
}

void StepSession::begin_states(std::span<const StepPart> parts) {
  std::vector<bool> taken(cache_size_.states);
  for (const StepPart& part : parts) {
    if (taken[part.state]) {
      throw Error("a step", fmt::format("two sequences with state {}", part.state),
                  "a state for each");
    }
    taken[part.state] = true;
  }
  for (const StepPart& part : parts) {
    if (part.cached > 0) continue;
    for (const auto& [name, kept] : states_) cache_.clear(name, part.state * kept, kept);
  }
}

std::vector<TokenId> StepSession::step(std::span<const StepPart> parts, const Observer& observer) {
  if (parts.empty()) throw Error("a step", "no part", "at least one");
  for (const StepPart& part : parts) check(part);
  const StepRows rows = rows_of(parts);
  std::vector<float> tokens;
  std::vector<std::uint64_t> places;
  for (const StepPart& part : parts) {
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    const std::vector<std::uint64_t> own = positions_of(part);
    places.insert(places.end(), own.begin(), own.end());
  }
  const std::vector<float> positions = position_ids(architecture().decoder, places);
  StepSizes sums(recording_, sums_);
  for (const SequenceRows& s : rows.sequences) sums.add({s.tokens, s.cached, s.dropped});
  const SymbolValues& sizes = sums.values();
  if (has_states()) begin_states(parts);
  work_ = {};
  logits_ = run(recording_.passes.size() - 1, executor_, sizes, sums.counts(),
                {{"tokens", tokens}, {"positions", positions}}, cache_, observer, &rows);
  logits_.shape = {parts.size(), 1, logits_.shape.back()};
  return greedy(logits_, session_.options().dtype);
}

std::vector<std::uint64_t> StepSession::choose_tokens(std::span<const TokenId> prompt,
                                                      std::size_t index) {
  check_ids(prompt, architecture());
  for (const HelperModel& model : recording_.helper_models) check_ids(prompt, model.architecture);
  most_chosen(prompt.size());
  CacheStore cache(cache_dtype(session_.options()));
  helpers_.reserve(cache, 1, prompt.size());
  cache.allocate();
  work_ = {};
  const HelperFindings found =
      helpers_.run({{prompt.begin(), prompt.end()}}, {}, index,
                   [&](std::size_t pass, const Executor& executor, const SymbolValues& sizes,
                       const Inputs& inputs) {
                     return run(pass, executor, sizes, {}, inputs, cache, nullptr, nullptr);
                   });
  return found.kept[0];
}

std::uint64_t StepSession::most_chosen(std::uint64_t prompt_len) const {
  KVCAST_ASSERT(recording_.selection);
  check_positions(architecture(), prompt_len);
  for (const HelperModel& model : recording_.helper_models) {
    check_positions(model.architecture, prompt_len + most_steps(recording_));
  }
  check_prompt_length(recording_, prompt_len);
  Symbols symbols;
  TokenSelection selection = *recording_.selection;
  const Count kept = kept_tokens(symbols, symbol::prompt_len, selection);
  return kept.at(symbols.resolve({1, prompt_len, 1}));
}

}  // namespace kvcast::execute
