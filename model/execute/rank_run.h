/// A request on several ranks. With a placement each runs a session of its share of the prompt, and
/// one of them goes on decoding (RankShare::decoder). With a model spread over devices each runs a
/// session of its place from the first pass to the last; rank 0 has the results. With both each
/// rank of the placement is such a group of devices, whose first one counts as the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/execute/generate.h"
#include "model/execute/messenger.h"

namespace kvcast::execute {

/// What one rank did; its seconds are those of prefill.
struct RankReport {
  std::uint64_t tokens = 0;    ///< of prompts that it read
  std::uint64_t messages = 0;  ///< that operators sent to other ranks: keys and values are two
  std::uint64_t message_bytes = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_cache_bytes = 0;  ///< as in Generation
  double compute_s = 0;
  double wait_s = 0;  ///< everything else between the common start and the rank's end
  double ttft_s = 0;
  double tpot_s = 0;
  std::uint64_t analytic_flops = 0;
  std::uint64_t analytic_bytes = 0;
  CountedWork counted;  ///< of sessions that count
};

struct RankRun {
  /// Of the rank that decodes, or rank 0 of spread models, with the FLOPs and bytes of all, all
  /// sequences and, if all logits were asked for, those of the whole prompt. Of other ranks their
  /// own.
  Generation generation;
  std::vector<RankReport> ranks;  ///< on that rank only
};

/// This rank's part of a request. The session's share or place has the messenger's rank and number
/// of ranks. With dp replicas each takes ceil(batch/dp) sequences in their order; what has none of
/// its own runs the last one again, and its result is dropped.
/// Throws Error as Session::run and Messenger::receive do.
RankRun run_rank(const Session& session, Request request, Messenger& messenger);

/// The sequences of a request that a device runs.
Request own_sequences(const Request& request, const DevicePlace& place);

/// All ranks in this process, each on a thread of its own; what the one that decodes has. `options`
/// are those of each rank but for the share and the place, which `plan` gives; `request_of` is
/// called once for each thread. Throws the first error of any rank. A rank waits `limit_s` seconds
/// for another at most.
RankRun run_ranks(const Checkpoint& checkpoint, const SessionOptions& options,
                  const std::vector<std::uint64_t>& partition,
                  const std::function<Request(std::size_t rank)>& request_of, double limit_s = 600,
                  const Parallelism& plan = {});
/// The same for a model spread over devices; what rank 0 has.
RankRun run_devices(const Checkpoint& checkpoint, const SessionOptions& options,
                    const Parallelism& plan,
                    const std::function<Request(std::size_t rank)>& request_of,
                    double limit_s = 600);

}  // namespace kvcast::execute
