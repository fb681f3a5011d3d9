/// From a recording and a device to TTFT, TPOT, cache and memory: one point or millions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/record/recording.h"
#include "roofline/op_cost.h"
#include "roofline/step_cost.h"

namespace kvcast::roofline {

/// The sizes of one request.
struct DesignPoint {
  std::uint64_t batch = 1;
  std::uint64_t prompt_len = 1;  ///< encoder-decoder models: encoder length
  std::uint64_t output_len = 1;
};

/// What the model says about one design point. Counts are exact up to 2^53.
struct Forecast {
  double ttft_s = 0;
  /// Its parts by TtftPart; without helper passes all of it is the base's.
  std::array<double, num_ttft_parts> ttft_parts_s{};
  double tpot_s = 0;  ///< mean over the decode steps of the output; one step when output_len is 1
  double prefill_flops = 0;
  double prefill_bytes = 0;           ///< algorithmic: weights, cache and activations
  double decode_flops_per_token = 0;  ///< mean over the output; of one sequence's token
  double decode_bytes_per_token = 0;
  double kv_cache_bytes = 0;  ///< at the end of the output, whole batch
  double weight_bytes = 0;
  double peak_memory_bytes = 0;  ///< weights, caches and the largest peak of activations
  bool fits = false;             ///< in the device's memory
  /// Of ttft_s and of tpot_s, what messages between devices take.
  double communication_s = 0;
  double tpot_communication_s = 0;
  /// Of an engine with a limit of tokens: a full step of a prompt (their mean), and one of what is
  /// left over.
  std::array<double, 2> prompt_step_s{};
  /// What a full step takes more than the one before it, whose prompt was shorter.
  double prompt_growth_s = 0;
  Bound ttft_bound = Bound::Compute;
  Bound tpot_bound = Bound::Memory;
  Bound bound = Bound::Compute;            ///< of the whole request
  Bound ttft_work_bound = Bound::Compute;  ///< apart from links
  Bound tpot_work_bound = Bound::Memory;

  bool operator==(const Forecast&) const = default;
};

/// One row of `--breakdown`: alike operators or, if the host that issues them is slower than the
/// device, the time that the device waits for it (phase "host").
struct BreakdownRow {
  std::string pass;  ///< "prefill", "decode", or the name of a helper pass
  OpGroup group;
  OpTime time;              ///< of one operator
  std::uint64_t count = 0;  ///< in all steps of a helper pass
  Seconds total;            ///< of all of them
};
/// What the device waits for the host in all of a pass.
BreakdownRow host_row(std::string pass, const char* label, std::uint64_t count, Seconds all);

class Forecaster {
 public:
  /// `chunk`: the same with RecordOptions::chunked, for engines that read a prompt in several steps
  /// (Rates::prefill_tokens); null: all prompts are read in one.
  Forecaster(const Recording& recording, const Lowering& lowering, const Rates& rates,
             const Recording* chunk = nullptr);

  const Rates& rates() const { return decode_.step.rates(); }
  /// Throws Error when a size is 0 or a count does not fit 64 bits.
  Forecast at(const DesignPoint& point) const;
  /// `rows` has as many entries as `points`, whose sizes are at least 1. Does not check for
  /// overflow: counts are doubles here.
  void sweep(std::span<const DesignPoint> points, std::span<Forecast> rows) const;
  struct PromptStep {
    std::uint64_t batch;   ///< sequences in it
    std::uint64_t tokens;  ///< of each
    std::uint64_t kv_len;  ///< of their caches after it
    std::size_t kind;      ///< in Forecast::prompt_step_s
    double from_mean = 0;  ///< full steps of its prompt after the middle one
  };
  /// The steps in which an engine with a limit of tokens reads the prompts, in their order; other
  /// engines have none.
  std::vector<PromptStep> prompt_steps(const DesignPoint& point) const;
  /// Every operator group of the helper passes, of prefill, and of the middle decode step.
  std::vector<BreakdownRow> breakdown(const DesignPoint& point) const;

 private:
  /// Room for a block of points, kept between blocks.
  struct Scratch;
  /// A cache and the peaks of activations, of which the largest counts.
  struct Memory {
    Polynomial cache_bytes;
    std::vector<Polynomial> activation_peaks;
  };
  struct Pass {
    RecordedPass recorded;  ///< without its graph
    std::vector<OpGroup> groups;
    StepCost step;
    std::optional<StepCost> predictor;  ///< the groups that are TtftPart::Predictor
    Memory memory;                      ///< of helper passes and of chunks
  };
  /// Like steps of a prefill: sequences and tokens of each, the cache lengths at which the first
  /// and the last of a prompt's chunks end, how many chunks, and of how many prompts.
  struct PrefillSteps {
    DesignPoint size;
    std::uint64_t first_kv_len = 1;
    std::uint64_t last_kv_len = 1;
    std::uint64_t chunks = 0;
    std::uint64_t times = 0;
  };
  Pass compile(const RecordedPass& pass, const Lowering& lowering, const Rates& rates);
  /// Full steps, and those of what is left over.
  std::array<PrefillSteps, 2> prefill_steps(const DesignPoint& point) const;
  void add_prompt(std::span<const DesignPoint> points, Scratch& scratch, Scratch& of_chunks) const;
  /// `sizes` has the sizes of chunks, `sums` gets the results.
  void add_chunks(std::span<const DesignPoint> points, Scratch& sizes, Scratch& sums) const;
  /// What the host takes for a step of each point.
  Lanes host_step(std::span<const DesignPoint> points) const;
  /// `prompts`: the lane of each point's prompt, which add_prompt has been given, and `of_prompts`
  /// their peaks of activations.
  void evaluate_block(std::span<const DesignPoint> points, std::span<const std::size_t> prompts,
                      const Lanes& of_prompts, std::span<Forecast> rows, Scratch& scratch) const;
  StepTotals mean_step(const StepCost& step, std::span<const DesignPoint> points,
                       Scratch& scratch) const;
  Lanes add_memory(const Memory& memory, std::span<const DesignPoint> points,
                   std::span<const std::uint64_t, lanes> kv_len, const Lanes& steps,
                   Scratch& scratch) const;
  SymbolValues values_at(const DesignPoint& point, std::uint64_t kv_len) const;
  /// The last cache length of each range, up to `last`, in which costs are affine in it; ascending.
  std::vector<std::uint64_t> range_ends(const DesignPoint& point, std::uint64_t last) const;
  /// Values of a count that does not depend on kv_len.
  void evaluate(const Count& count, std::span<const DesignPoint> points,
                std::span<std::uint64_t> values) const;

  Symbols symbols_;
  Symbols chunk_symbols_;      ///< of chunk_
  bool cuts_vary_ = false;     ///< with the prompt: kv_len_breakpoints_vary
  std::uint64_t context_ = 0;  ///< positions that the model was built for
  Count prompt_slots_;         ///< cache slots that prefill fills
  Polynomials polynomials_;    ///< of memory, over the symbols at the last step of a pass
  Memory memory_;  ///< at the end of the request: the cache, and peaks of the base's passes
  std::vector<Pass> prompt_;  ///< the passes up to the first token, in order
  Pass decode_;
  std::optional<Pass> chunk_;
  Count exact_kv_cache_bytes_;
  double weight_bytes_ = 0;
};

}  // namespace kvcast::roofline
