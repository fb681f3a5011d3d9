/// A queue of requests in front of servers: the schedulers' steps, one after another, with what
/// each takes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "simulate/serving/arrivals.h"
#include "simulate/serving/requests.h"
#include "simulate/serving/scheduler.h"
#include "simulate/serving/serving_times.h"

namespace kvcast::simulate {

/// What a step takes on a stage of a pipeline, and on its way to the next stage.
struct StageSeconds {
  double work = 0;
  double hop = 0;
};

/// What a server's work takes.
class StepClock {
 public:
  virtual ~StepClock() = default;
  /// Of one step, on a server of one stage and one rank.
  virtual double seconds(std::span<const ScheduledPart> parts) = 0;
  /// Of one step that all ranks take together, by stage.
  virtual void stages(std::span<const std::span<const ScheduledPart>> ranks,
                      std::vector<StageSeconds>& stages) {
    stages.assign(1, {seconds(ranks[0]), 0});
  }
  /// No server had anything to do for so long, until now.
  virtual void idle(double /*seconds*/) {}
  /// To tokenise a request's prompt: one after another, by one tokeniser for all servers.
  virtual double tokenising_seconds(const ServingRequest& /*request*/) { return 0; }
  /// From then until the scheduler sees the request.
  virtual double seconds_before(const ServingRequest& /*request*/) { return 0; }
  /// Why the model cannot take the request.
  virtual std::optional<std::string> refuses(const ServingRequest& /*request*/) { return {}; }
  /// Tokens of the prompt that the cache never holds.
  virtual std::uint64_t dropped_tokens(const ServingRequest& /*request*/) { return 0; }
};

/// Which server a request goes to when it arrives. Of the schedulers of one server it goes to the
/// one with the fewest; PrefixAware as among servers.
enum class Router {
  RoundRobin,   ///< in turn
  LeastLoaded,  ///< the fewest requests that wait or run
  PrefixAware,  ///< the most of the prompt in the cache, then as LeastLoaded
};
std::string_view name(Router router);
Router parse_router(std::string_view text);

/// The way of a prompt's cache from a server that reads prompts to one that decodes. One transfer
/// at a time leaves each server.
struct CacheLink {
  double latency_s = 0;
  double seconds_per_token = 0;
};

struct Servers {
  SchedulerSettings settings;
  std::shared_ptr<StepClock> clock;
  std::uint64_t count = 1;
  /// Data-parallel ranks of a server, each with a scheduler and a cache as in `settings`. They
  /// share experts, so they step together; one with nothing to do waits for the others.
  std::uint64_t ranks = 1;
};

struct ServingSetup {
  Servers servers;
  Router router = Router::RoundRobin;
  /// Servers that decode what `servers` have read, which then make one token of each request.
  std::optional<Servers> decoders = {};
  CacheLink link = {};
  std::optional<ClosedLoop> closed_loop = {};  ///< requests arrive so, not at their own times
};

/// A rank's part in a step of one server, when it begins.
struct ServedStep {
  std::size_t server = 0;
  std::size_t row = 0;  ///< steps of one row follow each other
  double start_s = 0;
  double seconds = 0;
  std::span<const ScheduledPart> parts;
  const Scheduler* scheduler = nullptr;
};

/// What becomes of requests and steps; all may be empty.
struct ServingWatch {
  std::function<void(const ServedStep&)> on_step = {};
  std::function<void(const Sequence&)> on_finished = {};
  std::function<void(const ServingRequest&, const std::string& reason)> on_rejected = {};
};

/// Serves all requests of the source, which must be in order of arrival. Requests that arrive
/// while a step runs are seen at the next one, or where that is planned ahead at the one after;
/// those of one time in the source's order.
///
/// A server of s stages has s steps under way. A step goes from stage to stage as soon as both are
/// free; its tokens are there when it leaves the last. vllm-v0 and static have a scheduler for each
/// stage (vLLM's virtual engines), which share the cache and take turns.
ServingTimes serve(const ServingSetup& setup, RequestSource& requests, const Slo& slo = {},
                   const ServingWatch& watch = {});

}  // namespace kvcast::simulate
