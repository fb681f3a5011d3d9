/// Runs the passes that come before the base model's prefill.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/execute/executor.h"
#include "model/record/recording.h"

namespace kvcast::execute {

using TokenId = std::uint32_t;

/// What the helper passes found.
struct HelperFindings {
  std::vector<FoundCount> counts;
  /// Of the prompt's tokens, by sequence; empty unless a pass computes it.
  std::vector<std::vector<double>> importance;
  /// Where a method selects the prompt's tokens: ascending positions, by sequence.
  std::vector<std::vector<std::uint64_t>> kept;
  /// See HelperResult::PromptLogits.
  std::optional<Output> prompt_logits;
};

class HelperRun {
 public:
  /// All must outlive it.
  HelperRun(const Recording& recording, const WeightStore& weights, Loops loops, DType dtype);

  /// Passes that will run for a prompt, at most.
  std::uint64_t passes(std::size_t batch, std::uint64_t prompt_len) const;
  /// Before the first pass: see Executor::reserve.
  void reserve(CacheStore& cache, std::size_t batch, std::uint64_t prompt_len) const;

  /// Runs pass `index` once with its inputs by name.
  using RunPass =
      std::function<Output(std::size_t index, const Executor&, const SymbolValues&, const Inputs&)>;
  /// The first prompt is sequence `index` of its batch, which random selection depends on. A token
  /// of `stop_tokens` ends a look-ahead of one sequence. Tokens are selected as soon as a
  /// pass reads the kept ones, at the latest after the last pass.
  HelperFindings run(const std::vector<std::vector<TokenId>>& prompt,
                     const std::vector<TokenId>& stop_tokens, std::size_t index,
                     const RunPass& run_pass) const;

 private:
  void select(const std::vector<std::vector<TokenId>>& prompt, std::size_t index,
              HelperFindings& found) const;
  SymbolValues values(const RecordedPass& pass, std::size_t batch, std::uint64_t prompt_len,
                      std::uint64_t step, std::span<const FoundCount> found = {}) const;

  const Recording& recording_;
  DType dtype_;
  std::vector<Executor> executors_;
};

/// Of the model that a pass is of.
const Stack& stack_of(const Recording& recording, const RecordedPass& pass);

/// Token ids as the numbers that graphs take.
std::vector<float> flatten(const std::vector<std::vector<TokenId>>& sequences, std::size_t first,
                           std::size_t count);

/// Position ids as they enter the graph: rows of a position table, which may begin at an offset.
std::vector<float> position_ids(const Stack& stack, std::span<const std::uint64_t> positions);

/// The most likely token at each sequence's last position; the lowest id among equals. Throws Error
/// when logits are not finite.
std::vector<TokenId> greedy(const Output& logits, DType dtype);

}  // namespace kvcast::execute
