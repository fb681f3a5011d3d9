/// Runs steps of a server: prompt chunks and decode steps of several sequences in one pass, over a
/// paged cache that their owner hands out.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/execute/generate.h"
#include "model/execute/session_run.h"
#include "model/execute/step_rows.h"
#include "model/record/step_recording.h"

namespace kvcast::execute {

/// Blocks of `block_size` tokens each, numbered from 0.
struct PagedCacheSize {
  std::uint64_t num_blocks = 0;
  std::uint64_t block_size = 16;
  std::uint64_t states = 0;  ///< sequences that have a state at once, at most
};

/// What one sequence computes in a step: the next of its tokens, behind the `cached` rows that its
/// blocks hold. Row i is row i % block_size of block blocks[i / block_size]. Sequences may share
/// blocks of cached rows; those may be of the same step, if another part computes them.
struct StepPart {
  std::span<const TokenId> tokens;
  std::uint64_t cached = 0;
  std::span<const std::uint32_t> blocks;  ///< enough for cached and new tokens
  /// The tokens' positions in the text, where a method chose some of its tokens; else empty: those
  /// of their rows.
  std::span<const std::uint64_t> positions = {};
  /// More of the prompt is to come: a cache that a method bounds (streaming) holds all of it until
  /// then. Of such a cache no block may be shared, as its rows move.
  bool prompt_goes_on = false;
  /// Where the sequence has its state, below PagedCacheSize::states: no other's until it ends or
  /// begins again. Blocks of sequences with states cannot be shared.
  std::size_t state = 0;
};

/// Of the last step, or of the passes that chose a prompt's tokens.
struct StepWork {
  std::uint64_t analytic_flops = 0;
  std::uint64_t analytic_bytes = 0;
  CountedWork counted;  ///< with Loops::Counting, and in FP64
};

/// Decoder-only models that attend to a cache of keys and values or latents, by tiled attention, or
/// have states. All cached tokens keep their rows, those too that no window reaches any more,
/// unless a method bounds them.
class StepSession {
 public:
  /// Records the step, loads the weights and makes the cache. The checkpoint must outlive it.
  /// `options` as of a session; `chunk` has no meaning here. Throws Error for what a step cannot
  /// be: see add_step; encoder-decoder models; methods whose passes before the base's fill its
  /// cache; logits of all positions; a part of the model.
  StepSession(const Checkpoint& checkpoint, const SessionOptions& options,
              const PagedCacheSize& cache);
  StepSession(const StepSession&) = delete;
  StepSession& operator=(const StepSession&) = delete;

  /// The most likely token after the last one of each part. Throws Error for token ids and lengths
  /// that the model does not have, blocks that the cache does not have or that are too few, and
  /// states that it does not have or that two parts have.
  std::vector<TokenId> step(std::span<const StepPart> parts, const Observer& observer = nullptr);

  /// With a method that chooses the prompt's tokens (specprefill): runs its passes over a whole
  /// prompt. Returns the ascending positions of the tokens that the base reads; they are the
  /// sequence's prompt in steps. `index` is the sequence's place among all, by which random choices
  /// differ. Throws Error for prompts that the models or the method do not take.
  std::vector<std::uint64_t> choose_tokens(std::span<const TokenId> prompt, std::size_t index = 0);
  /// The most tokens that it keeps. Throws Error for lengths that the models or the method do not
  /// take.
  std::uint64_t most_chosen(std::uint64_t prompt_len) const;

  /// Rows that a sequence has in its cache after a step: its next `cached`.
  std::uint64_t rows_after(const StepPart& part) const;

  /// Of the last step: [parts, 1, vocab_size].
  const Output& logits() const { return logits_; }
  /// Of the last step or choose_tokens().
  const StepWork& work() const { return work_; }

  const Architecture& architecture() const { return session_.architecture(); }
  /// With the pass "step".
  const Recording& recording() const { return recording_; }
  const StepSums& sums() const { return sums_; }
  const PagedCacheSize& cache_size() const { return cache_size_; }
  std::uint64_t weight_bytes() const { return session_.weight_bytes(); }
  std::uint64_t cache_bytes() const { return cache_.bytes(); }
  bool has_states() const { return !states_.empty(); }

 private:
  void check(const StepPart& part) const;
  Output run(std::size_t pass, const Executor& executor, const SymbolValues& sizes,
             std::vector<FoundCount> found, const Inputs& inputs, CacheStore& cache,
             const Observer& observer, const StepRows* rows);
  StepRows rows_of(std::span<const StepPart> parts) const;
  void begin_states(std::span<const StepPart> parts);

  Session session_;
  Recording recording_;
  StepSums sums_;
  PagedCacheSize cache_size_;
  std::vector<PassWork> analytic_;  ///< by pass
  Executor executor_;
  HelperRun helpers_;
  CacheStore cache_;
  std::map<std::string, std::uint64_t> states_;  ///< by name: rows of a sequence
  Arena arena_;
  Output logits_;
  StepWork work_;
};

}  // namespace kvcast::execute
