/// A workload executed on the CPU: the simulator's servers and schedulers, with steps that are run
/// and timed in the place of their costs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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
  /// Throws Error for prefixes that are cached where the model has states, or a method bounds the
  /// cache or chooses the prompt's tokens, and for prompts in chunks where it chooses them.
  ExecutedSteps(execute::StepSession& session, const simulate::SchedulerSettings& settings,
                bool waits);

  double seconds(std::span<const simulate::ScheduledPart> parts) override;
  void idle(double seconds) override;
  std::uint64_t dropped_tokens(const simulate::ServingRequest& request) override;
  std::optional<std::string> refuses(const simulate::ServingRequest& request) override;

  /// Tokens that were made of each request, by its id; those of its prompt are dropped when it has
  /// ended.
  const std::map<std::uint64_t, std::vector<execute::TokenId>>& made() const { return made_; }
  void ended(const simulate::Sequence& s);
  void rejected(const simulate::ServingRequest& r) { known_.erase(r.id); }

 private:
  /// A request under way.
  struct Known {
    std::vector<execute::TokenId> tokens;  ///< the prompt, or what is chosen of it, and made ones
    std::vector<std::uint64_t> positions;  ///< of these tokens, where a method chooses
    std::uint64_t dropped = 0;             ///< tokens of the prompt that are not chosen
    std::uint64_t rows = 0;                ///< in the cache
    const simulate::Sequence* sequence = nullptr;
    std::optional<std::size_t> state = {};  ///< its place among the states
  };
  Known begin(const simulate::ServingRequest& request);
  std::size_t free_state();

  execute::StepSession& session_;
  std::uint64_t block_tokens_;
  bool waits_;
  bool is_bounded_;
  bool chooses_;
  Stopwatch since_;
  std::map<std::uint64_t, Known> known_;  ///< by id
  std::map<std::uint64_t, std::vector<execute::TokenId>> made_;
};

}  // namespace kvcast::measure
