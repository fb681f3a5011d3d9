/// A server's step: prompt chunks and decode steps of sequences of unequal lengths in one pass.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/record/recording.h"

namespace kvcast {

inline constexpr std::string_view step_name = "step";

/// One sequence's part in a step: a chunk of its prompt, or one token of its output.
struct StepSequence {
  std::uint64_t tokens = 1;  ///< that the step computes, at least 1
  std::uint64_t cached = 0;  ///< rows of its cache before them
  /// Rows that its cache lets go of after them, see CacheBound::too_many: none while more of the
  /// prompt is to come.
  std::uint64_t dropped = 0;
};

/// What a causal attention sees: Mask::window and Mask::chunk.
struct VisibleRange {
  std::uint64_t window = 0;
  std::uint64_t chunk = 0;
  auto operator<=>(const VisibleRange&) const = default;
};

/// Sums over a step's sequences. In estimates, where all have one length, they are `batch` times
/// what one sequence has.
struct StepSums {
  Symbol tokens;
  Symbol cached;
  /// By what the layers see: visible (query, key) pairs, and keys that some query sees.
  struct Visible {
    Symbol pairs;
    Symbol keys;
  };
  std::map<VisibleRange, Visible> visible;
  /// By StateScan::chunk: its pairs and chunks, and tokens of sequences that have more than one.
  struct Scanned {
    Symbol pairs;
    Symbol chunks;
    Symbol limited;
  };
  std::map<std::uint64_t, Scanned> scanned = {};
  /// Of caches with a bound: rows that go, and rows that move up.
  struct Evicted {
    Symbol dropped;
    Symbol moved;
    std::uint64_t kept_first = 0;
  };
  std::optional<Evicted> evicted = {};
};

/// Adds the pass "step" to a recording whose prefill is a chunk (RecordOptions::steps) that ends
/// with the last token's logits. It is that prefill with the sequences side by side in one row:
/// [batch, prompt_len, ...] becomes [1, sum of tokens, ...], every sequence has its last token's
/// logits, attention takes the sums, and each token has a row of a position table. Estimates cost
/// it, and execute::StepSession runs it.
/// `place`: of the recording's device, where experts lie on several. Throws Error if an operator
/// does not work row by row, as those of eager attention, or if a sequence's caches have unequal
/// numbers of rows.
StepSums add_step(Recording& recording, const std::optional<DevicePlace>& place = {});

/// The sums of a step, sequence by sequence.
class StepSizes {
 public:
  /// Both must outlive it.
  StepSizes(const Recording& recording, const StepSums& sums);
  void clear();
  void add(const StepSequence& sequence);
  /// So many sequences with a token each, without what depends on their caches.
  void add_rows(std::uint64_t sequences);
  std::uint64_t num_sequences() const { return sequences_; }
  /// Of each symbol of the sums.
  const std::vector<FoundCount>& counts() const { return found_; }
  /// Values of all symbols; `batch` is the number of sequences, at least one.
  const SymbolValues& values();

 private:
  const Recording& recording_;
  const StepSums& sums_;
  std::uint64_t sequences_ = 0;
  StepSequence most_;  ///< no sum is above that of as many sequences of this length
  std::vector<FoundCount> found_;
  SymbolValues values_;
};

/// Sizes of a step of these sequences, at least one; `batch` is their number.
SymbolValues step_sizes(const Recording& recording, const StepSums& sums,
                        std::span<const StepSequence> sequences);

}  // namespace kvcast
