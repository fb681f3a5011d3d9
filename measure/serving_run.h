/// A workload executed on the CPU: the simulator's servers and schedulers, with steps that are run
/// and timed in the place of their costs.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/base/stopwatch.h"
#include "model/execute/step_session.h"
#include "simulate/serving/serving.h"

namespace kvcast::measure {

/// The tokens of a request's prompt: its own, or made-up ones in which equal block ids of
/// `block_tokens` tokens have equal tokens.
std::vector<execute::TokenId> prompt_of(const simulate::ServingRequest& request,
                                        std::uint64_t block_tokens, std::uint64_t vocab_size);

/// Runs each step when its seconds are asked for. They count from the end of the step before it, or
/// from the end of the wait for a request, so that the host's work is in them.
class ExecutedSteps : public simulate::StepClock {
 public:
  /// `session` has as many blocks as the scheduler; `waits`: the time until a request arrives is
  /// slept through, otherwise skipped.
  /// Throws Error for prefixes that are cached where a method bounds the cache.
  ExecutedSteps(execute::StepSession& session, const simulate::SchedulerSettings& settings,
                bool waits);

  double seconds(std::span<const simulate::ScheduledPart> parts) override;
  void idle(double seconds) override;

  /// Tokens that were made of each request, by its id; those of its prompt are dropped when it has
  /// ended.
  const std::map<std::uint64_t, std::vector<execute::TokenId>>& made() const { return made_; }
  void ended(const simulate::Sequence& s);

 private:
  execute::StepSession& session_;
  std::uint64_t block_tokens_;
  bool waits_;
  bool is_bounded_;
  Stopwatch since_;
  std::map<std::uint64_t, std::vector<execute::TokenId>> known_;  ///< prompt and made, by id
  std::map<std::uint64_t, std::vector<execute::TokenId>> made_;
  std::map<std::uint64_t, std::uint64_t> rows_;  ///< in a bounded cache, by id
};

}  // namespace kvcast::measure
