/// Seconds of a server's steps: prompt chunks and decode steps of many requests in one pass.
///
/// The rows of all sequences go through weights and element-wise operators together; attention over
/// the cache is one launch of the chunks and one of the decode steps, each at its own rate. A step
/// of decode steps alone is the recorded decode step at the mean cache length, which is exact, for
/// its counts grow in proportion to sequences and to their caches.
///
/// Replicas that share experts (dp with ep) step together: a step takes as long as the rank with
/// most to do outside the experts, and as the experts with the mean of all ranks' rows. A prompt
/// that comes whole has its experts' time in its own, as if every rank read one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "model/record/step_recording.h"
#include "roofline/estimator.h"
#include "roofline/step_cost.h"

namespace kvcast::roofline {

/// What several devices take to read a whole prompt together.
struct GroupPrefill {
  double seconds = 0;           ///< to the first token
  double activation_bytes = 0;  ///< on the device with most
};
/// Throws Error for prompts that the devices cannot share.
using PrefillGroup = std::function<GroupPrefill(std::uint64_t prompt_len)>;

class ServerStep {
 public:
  /// Records and compiles a stage of a pipeline. With a group, prompts come whole and take as long
  /// as it says; one of its devices decodes. Throws Error as Estimator does, and for models of
  /// which no step of several sequences can be made.
  explicit ServerStep(const Configuration& configuration, PrefillGroup group = {},
                      std::uint64_t stage = 0);
  ServerStep(const ServerStep&) = delete;
  ServerStep& operator=(const ServerStep&) = delete;

  /// Prompts may come in chunks; else a method needs them whole.
  bool takes_chunks() const { return prompts_.has_value(); }
  /// Throws Error for prompts that a method or the group does not take.
  void check_prompt(std::uint64_t prompt_len);
  /// A chunk of a prompt, or all of it. Whole prompts take as long as one after another.
  void add_prompt(const StepSequence& sequence);
  /// A decode step; the cache has `kv_len` tokens with its own.
  void add_decode(std::uint64_t kv_len);
  /// What is added from now on is another rank's.
  void next_rank();
  /// Of what was added since the last call, at least one sequence.
  Seconds take();
  /// Of what was added since take(): what goes to the next stage, of the rank with most.
  double hop_bytes() const;

  /// Of one device.
  const Recording& recording() const { return recording_; }
  const Rates& rates() const { return rates_; }
  double weight_bytes() const { return weight_bytes_; }
  /// Rows of the cache that a prompt fills.
  std::uint64_t slots(std::uint64_t prompt_len) const;
  /// Of activations, in a step of one prompt of so many tokens.
  double activation_bytes(std::uint64_t tokens) const;
  /// Of one token in all layers, those beyond windows too.
  double cache_bytes_per_token() const { return cache_bytes_per_token_; }

 private:
  /// A pass in three parts: what depends on the caches' lengths, what experts do with the rows of
  /// all ranks, if there are several, and the rest.
  struct Pass {
    StepCost rows;
    StepCost attention;
    std::optional<StepCost> experts;
    double host_s() const { return rows.host_seconds() + attention.host_seconds(); }
  };
  Pass compile(const Graph& graph, const std::vector<Symbol>& of_caches, bool decodes,
               const Configuration& configuration) const;
  double expert_seconds();
  /// Symbol values of the decode steps: means over them.
  const std::vector<double>& decode_means();
  const std::vector<double>& derived_at(std::uint64_t kv_len);

  /// Of a prompt that comes whole, with the host's time for helper passes; take() adds that for the
  /// step itself.
  double whole_prompt_seconds(std::uint64_t prompt_len);
  Forecast forecast(std::uint64_t prompt_len) const;

  Recording recording_;
  PrefillGroup group_;
  StepSums sums_;  ///< of prompts_
  Rates rates_;
  std::optional<Pass> prompts_;
  std::optional<Forecaster> whole_;
  Pass decode_;
  double weight_bytes_ = 0;
  double hop_bytes_per_row_ = 0;
  double cache_bytes_per_token_ = 0;

  // Of the rank that sequences are added to.
  StepSizes all_;
  StepSizes chunks_;
  std::uint64_t rows_ = 0;  ///< but for whole prompts
  std::uint64_t whole_prompts_ = 0;
  std::uint64_t whole_rows_ = 0;
  double whole_prompts_s_ = 0;                      ///< with what experts do
  std::map<std::uint64_t, double> whole_prompt_s_;  ///< by length
  std::uint64_t decodes_ = 0;
  double sum_of_kv_len_ = 0;  ///< over the decode steps
  /// Symbols that the decode step derives from kv_len, and their sums over the decode steps.
  std::vector<Symbol> derived_;
  std::vector<double> sums_of_derived_;
  /// Of the ranks before it.
  struct Ranks {
    std::uint64_t number = 0;
    std::uint64_t rows = 0;
    std::uint64_t most_rows = 0;
    bool has_chunks = false;
    double device_s = 0;  ///< of the one with most, as all below
    double host_s = 0;
    double sequences_s = 0;
  };
  Ranks ranks_;
  // Once asked for: values of derived_ by kv_len, and of all symbols by the number of sequences.
  std::vector<std::vector<double>> derived_at_;
  std::vector<std::vector<double>> of_batch_;
};

}  // namespace kvcast::roofline
