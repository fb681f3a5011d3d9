/// A prompt on several ranks: each runs a session of its share, one of them goes on decoding
/// (RankShare::decoder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/execute/generate.h"
#include "model/execute/messenger.h"

namespace kvcast::execute {

/// What one rank did; its seconds and messages are those of prefill.
struct RankReport {
  std::uint64_t tokens = 0;
  std::uint64_t messages = 0;  ///< sent to other ranks: keys and values are two
  std::uint64_t message_bytes = 0;
  double compute_s = 0;
  double wait_s = 0;  ///< everything else between the common start and the rank's end
  std::uint64_t analytic_flops = 0;
  std::uint64_t analytic_bytes = 0;
  CountedWork counted;  ///< of sessions that count
};

struct RankRun {
  /// Of the rank that decodes, with the FLOPs and bytes of all and, if all logits were asked for,
  /// those of the whole prompt. Of other ranks their own.
  Generation generation;
  std::vector<RankReport> ranks;  ///< on the rank that decodes only
};

/// This rank's part of a request. The session's share has the messenger's rank and number of ranks.
/// Throws Error as Session::run and Messenger::receive do.
RankRun run_rank(const Session& session, Request request, Messenger& messenger);

/// All ranks in this process, each on a thread of its own; what the one that decodes has. `options`
/// are those of each rank but for the share; `request_of` is called once for each. Throws the first
/// error of any rank. A rank waits `limit_s` seconds for another at most.
RankRun run_ranks(const Checkpoint& checkpoint, const SessionOptions& options,
                  const std::vector<std::uint64_t>& partition,
                  const std::function<Request(std::size_t rank)>& request_of, double limit_s = 600);

}  // namespace kvcast::execute
