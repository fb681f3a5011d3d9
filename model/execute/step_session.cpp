#include "model/execute/step_session.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::execute {
namespace {

/// Of a session whose prefill is a chunk, which add_step makes a step of.
SessionOptions chunked(const Architecture& a, SessionOptions options) {
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw Error("steps of " + a.name, found, expected);
  };
  if (a.encoder_decoder) refuse("an encoder-decoder model", "a decoder-only model");
  if (options.logits != Logits::Last) {
    refuse("logits of all positions", "those of each sequence's last token");
  }
  if (options.share || options.place) refuse("a part of the model or prompt", "one device");
  options.chunk = 1;  // any: chunks of all lengths have one recording
  return options;
}

void check_runs(const Recording& recording) {
  const std::string where = "steps of " + recording.model.name;
  if (!recording.helpers().empty() || recording.selection || recording.given_positions) {
    throw Error(where, "a method with passes before the base's, or that chooses its tokens",
                "one that changes the base's own pass");
  }
  for (const Node& node : recording.pass(step_name).graph.nodes()) {
    const bool of_latents = is_any<JoinHeads>(node.op);
    if (!of_latents && !is_any<StateScan, CausalConv>(node.op)) continue;
    throw Error(where,
                fmt::format("the operator {}, {}", name(node.op),
                            of_latents ? "whose keys are made of latents" : "which has a state"),
                "layers that attend to a cache of all tokens");
  }
}

}  // namespace

StepSession::StepSession(const Checkpoint& checkpoint, const SessionOptions& options,
                         const PagedCacheSize& cache)
    : session_(checkpoint, chunked(checkpoint.architecture(), options)),
      recording_(session_.recording()),
      sums_(add_step(recording_)),
      cache_size_(cache),
      analytic_(recording_.pass(step_name).graph),
      executor_(recording_.pass(step_name).graph, session_.weights(), loops_of(session_.options()),
                options.dtype),
      cache_(options.dtype) {
  if (cache.num_blocks == 0 || cache.block_size == 0 ||
      cache.num_blocks > std::numeric_limits<std::uint32_t>::max() / cache.block_size) {
    throw Error("a paged cache",
                fmt::format("{} blocks of {} tokens", cache.num_blocks, cache.block_size),
                "from 1 to 2^32 - 1 tokens in all");
  }
  check_runs(recording_);
  for (const TensorInfo& t : recording_.pass(step_name).graph.tensors()) {
    if (t.storage != Storage::KvCache || t.producer) continue;
    cache_.reserve(t.name, 1, cache.num_blocks * cache.block_size, t.shape[2].constant());
  }
  cache_.allocate();
}

void StepSession::check(const StepPart& part) const {
  const Architecture& a = architecture();
  const auto refuse = [](const std::string& found, const std::string& expected) {
    throw Error("a part of a step", found, expected);
  };
  if (part.tokens.empty()) refuse("no token", "at least one");
  const std::uint64_t length = part.cached + part.tokens.size();
  if (part.blocks.size() < (length + cache_size_.block_size - 1) / cache_size_.block_size) {
    refuse(fmt::format("{} blocks for {} cached and new tokens", part.blocks.size(), length),
           fmt::format("a block for each {}", cache_size_.block_size));
  }
  for (const std::uint32_t block : part.blocks) {
    if (block < cache_size_.num_blocks) continue;
    refuse(fmt::format("block {}", block), fmt::format("one of {}", cache_size_.num_blocks));
  }
  for (const TokenId token : part.tokens) {
    if (token < a.vocab_size) continue;
    refuse(fmt::format("token id {}", token),
           fmt::format("ids below the vocabulary size {} of {}", a.vocab_size, a.name));
  }
  std::uint64_t most = a.decoder.position_rows;
  for (const LayerShape& layer : a.decoder.layers) {
    // Beyond, keys of one sequence would have the rotations of several tables.
    if (layer.rope && layer.rope->max_positions > 0) most = layer.rope->max_positions;
  }
  if (most == 0 || length <= most) return;
  refuse(fmt::format("{} positions", length),
         fmt::format("at most the {} that {} has or was trained for", most, a.name));
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
    written.insert(written.end(), rows.all_places.end() - static_cast<std::ptrdiff_t>(s.tokens),
                   rows.all_places.end());
  }
  std::sort(written.begin(), written.end());
  if (std::adjacent_find(written.begin(), written.end()) != written.end()) {
    throw Error("a step", "two tokens in one row of the cache", "a row for each new token");
  }
  return rows;
}

std::vector<TokenId> StepSession::step(std::span<const StepPart> parts, const Observer& observer) {
  if (parts.empty()) throw Error("a step", "no part", "at least one");
  for (const StepPart& part : parts) check(part);
  const StepRows rows = rows_of(parts);
  std::vector<float> tokens;
  std::vector<std::uint64_t> places;
  for (const StepPart& part : parts) {
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    for (std::size_t i = 0; i < part.tokens.size(); ++i) places.push_back(part.cached + i);
  }
  const std::vector<float> positions = position_ids(architecture().decoder, places);

  work_ = {};
  const auto observe = [&](const NodeRun& node) {
    if (node.counted != nullptr) work_.counted += *node.counted;
    if (observer) observer(node);
  };
  StepSizes sums(recording_, sums_);
  for (const SequenceRows& s : rows.sequences) sums.add({s.tokens, s.cached, s.dropped});
  const SymbolValues& sizes = sums.values();
  LateSizes late{&recording_.symbols, sums.counts(), sizes};
  logits_ = executor_.run(sizes, {{"tokens", tokens}, {"positions", positions}}, cache_, arena_,
                          observe, nullptr, &late, &rows);
  logits_.shape = {parts.size(), 1, logits_.shape.back()};
  work_.analytic_flops = analytic_.flops.at(late.values);
  work_.analytic_bytes = analytic_.bytes.at(late.values);
  return greedy(logits_, session_.options().dtype);
}

}  // namespace kvcast::execute
