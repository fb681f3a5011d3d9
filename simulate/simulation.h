/// Discrete-event simulation: programs played on a platform whose links are shared max-min fairly.
///
/// A message takes no bandwidth until its latency is over (the route's, and the overhead of a
/// message if there is one); then its bytes flow at the max-min fair rate, by progressive filling
/// over all flows that flow at that moment, recomputed whenever one starts or ends. It holds all
/// links of its route at once (cut-through) and is delivered when its last byte has flowed.
/// Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "simulate/platform.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// How the messages of one rank leave.
enum class SendOrder {
  Async,  ///< each at once; several to one neighbour share the link
  /// As Async, but before a rank computes, ends, or sends what follows a receive, it waits until
  /// all that it sent has arrived.
  Block,
  Fifo,  ///< one at a time, in the order sent, as one stream of a GPU communication library; those
         ///< of collectives as Async
};
std::string_view name(SendOrder order);
/// "async", "block", "fifo". Throws Error with the nearest name.
SendOrder parse_send_order(std::string_view word);

/// Traffic of others. It waits in no fifo queue.
struct BackgroundFlow {
  double start_s = 0;
  std::uint32_t source = 0;  ///< device
  std::uint32_t destination = 0;
  std::uint64_t bytes = 0;
};

struct RunOptions {
  SendOrder send_order = SendOrder::Fifo;
  std::vector<BackgroundFlow> background = {};
  /// Added to the latency of every message of a rank; zero in the pure model.
  double message_overhead_s = 0;
  /// One per link, above zero; empty: all 1.
  std::vector<double> bandwidth_factors = {};
  /// Every computation of rank i takes compute_factors[i] times as long, a number above 0; empty:
  /// all 1.
  std::vector<double> compute_factors = {};
  bool record = false;  ///< fill RunResult::intervals and ::rate_changes
};

enum class IntervalKind { Compute, Wait, Transfer, Background };

/// What one rank did, or one message, for traces and charts.
struct Interval {
  IntervalKind kind = IntervalKind::Compute;
  std::uint32_t rank = 0;    ///< the sender of a transfer
  std::uint32_t peer = 0;    ///< the receiver, or the sender that is waited for
  std::uint32_t detail = 0;  ///< the label of a compute; Message::number of a transfer or wait
  double begin_s = 0;
  double end_s = 0;
  std::uint64_t bytes = 0;  ///< of transfers
};

/// From this time on a message flows at another rate; 0 when it is delivered.
struct RateChange {
  double time_s = 0;
  std::uint32_t message = 0;  ///< counted as programs list their sends, then background flows
  double bytes_per_s = 0;
};

struct RankUsage {
  double compute_s = 0;
  double waiting_s = 0;   ///< for messages to arrive; compute and waiting make up its finish
  double transfer_s = 0;  ///< while at least one of its messages was sent and not yet delivered
};

struct RunResult {
  std::vector<double> finish_s;  ///< one per rank
  double ttft_s = 0;             ///< when the last rank that makes the first token has it
  double makespan_s = 0;         ///< finish of the last of all
  std::uint64_t messages = 0;    ///< delivered, background flows not counted
  std::uint64_t message_bytes = 0;
  /// Computations ended, messages that began to flow, messages delivered; with background flows.
  std::uint64_t events = 0;
  std::vector<RankUsage> ranks;
  /// Bytes that went over each link, background included, until the last rank finished and the
  /// last message arrived.
  std::vector<double> link_bytes;
  /// Share of what each link could have carried in that time.
  std::vector<double> link_utilisation;
  /// Computations when they began, all else when it ended.
  std::vector<Interval> intervals;
  std::vector<RateChange> rate_changes;
};

/// Programs with their messages matched, ready to run any number of times with other options. Runs
/// of one Simulation share nothing that changes, so several threads may run it at once.
class Simulation {
 public:
  /// Throws Error: another number of ranks than devices, peers out of range or the rank
  /// itself, durations that are negative or not finite, labels out of range, a message that is
  /// waited for and never sent.
  Simulation(Platform platform, Programs programs);

  const Platform& platform() const { return platform_; }
  const std::vector<std::string>& labels() const { return programs_.labels; }
  /// Ranks that have something to do.
  std::vector<std::uint32_t> busy_ranks() const;

  /// Deterministic. Throws Error: a background flow whose ends are not two devices, that starts
  /// before 0 or never, and ranks that wait for each other.
  RunResult run(const RunOptions& options = {}) const;

 private:
  friend class EventLoop;

  struct Message {
    std::uint64_t bytes = 0;
    std::uint32_t route = 0;
    std::uint32_t sender = 0;
    std::uint32_t receiver = 0;
    std::uint32_t number = 0;  ///< counts from 0 for each sender and receiver
  };
  struct Route {
    std::uint32_t first_hop = 0;
    std::uint32_t num_hops = 0;
    double latency_s = 0;
  };

  void add_messages();
  void match_receives();
  void add_routes();
  /// Appends the route's links to `hops`.
  static Route add_route(const Platform& platform, std::uint32_t from_device, const RouteTree& tree,
                         std::vector<std::uint32_t>& hops);

  Platform platform_;
  Programs programs_;
  std::vector<Message> messages_;             ///< those of a rank are consecutive, in send order
  std::vector<bool> queues_;                  ///< of each, see Send
  std::vector<std::uint32_t> first_message_;  ///< of each rank, and the end
  std::vector<std::vector<std::uint32_t>>
      received_;  ///< messages of each rank, as it waits for them
  std::vector<Route> routes_;
  std::vector<std::uint32_t> hops_;  ///< links of all routes
};

}  // namespace kvcast::simulate
