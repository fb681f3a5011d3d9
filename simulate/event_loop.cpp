// One run of a Simulation: ranks step through their programs, messages become flows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "simulate/event_heap.h"
#include "simulate/fair_network.h"
#include "simulate/simulation.h"

namespace kvcast::simulate {
namespace {

constexpr std::uint32_t nothing = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t all_sends = nothing - 1;
/// Our choice: each that begins or ends changes the rates of all others, and no link carries so
/// many.
constexpr std::size_t max_background_at_once = 2000;

}  // namespace

class EventLoop {
 public:
  EventLoop(const Simulation& simulation, const RunOptions& options)
      : simulation_(simulation),
        platform_(simulation.platform()),
        send_order_(options.send_order),
        record_(options.record),
        message_overhead_s_(options.message_overhead_s),
        num_messages_(static_cast<std::uint32_t>(simulation.messages_.size())),
        routes_(simulation.routes_),
        hops_(simulation.hops_),
        background_timer_(platform_.num_devices()),
        first_flow_(background_timer_ + 1),
        ranks_(platform_.num_devices()),
        delivered_(simulation.messages_.size(), 0),
        unfinished_(platform_.num_devices()) {
    if (!(message_overhead_s_ >= 0) || !std::isfinite(message_overhead_s_)) {
      throw Error("message overhead", fmt::format("{} s", message_overhead_s_), "zero or more");
    }
    const std::vector<PlatformLink>& links = platform_.links();
    const std::vector<double>& factors = options.bandwidth_factors;
    const std::vector<double>& compute_factors = options.compute_factors;
    KVCAST_ASSERT(compute_factors.empty() || compute_factors.size() == ranks_.size());
    KVCAST_ASSERT(factors.empty() || factors.size() == links.size());
    const auto is_factor = [](double factor) { return factor > 0 && std::isfinite(factor); };
    KVCAST_ASSERT(std::all_of(factors.begin(), factors.end(), is_factor));
    KVCAST_ASSERT(std::all_of(compute_factors.begin(), compute_factors.end(), is_factor));
    for (std::size_t p = 0; p < ranks_.size(); ++p) {
      ranks_[p].next_send = ranks_[p].next_to_leave = simulation.first_message_[p];
      if (!compute_factors.empty()) ranks_[p].factor = compute_factors[p];
    }
    add_background(options.background);
    std::size_t max_hops = 1;
    for (const Route& r : routes_) max_hops = std::max<std::size_t>(max_hops, r.num_hops);
    std::vector<double> bytes_per_s;
    for (std::size_t i = 0; i < links.size(); ++i) {
      bytes_per_s.push_back((factors.empty() ? 1 : factors[i]) * links[i].bytes_per_s);
    }
    FairNetwork::OnRate on_rate;
    if (record_) {
      on_rate = [this](std::uint32_t flow, double now, double rate) {
        result_.rate_changes.push_back({now, transfers_[flow].message, rate});
      };
    }
    network_.emplace(std::move(bytes_per_s), max_hops, first_flow_, std::move(on_rate));
    result_.finish_s.resize(ranks_.size());
    result_.ranks.resize(ranks_.size());
  }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Once.
  RunResult run() {
    for (std::uint32_t p = 0; p < ranks_.size(); ++p) advance(p);
    network_->settle(now_, events_);
    while (unfinished_ > 0 || in_flight_ > 0) {
      stop_if_interrupted();
      if (events_.empty()) fail_deadlock();
      now_ = events_.time();
      if (!std::isfinite(now_)) {
        throw Error("simulation", "times beyond what a number can hold",
                    "shorter computations, smaller messages or faster links");
      }
      do {
        handle(events_.pop());
      } while (!events_.empty() && events_.time() == now_);
      network_->settle(now_, events_);
    }
    const std::size_t last = result_.finish_s.size() - 1;
    const auto answers =
        static_cast<std::ptrdiff_t>(simulation_.programs_.answers_from.value_or(last));
    result_.ttft_s = *std::max_element(result_.finish_s.begin() + answers, result_.finish_s.end());
    result_.makespan_s = *std::max_element(result_.finish_s.begin(), result_.finish_s.end());
    result_.link_bytes = network_->link_bytes(now_);
    result_.link_utilisation = result_.link_bytes;
    for (std::size_t i = 0; i < result_.link_bytes.size(); ++i) {
      double& share = result_.link_utilisation[i];
      if (share > 0) share /= now_ * network_->bytes_per_s(i);
    }
    return std::move(result_);
  }

 private:
  using Message = Simulation::Message;
  using Route = Simulation::Route;

  struct Rank {
    std::size_t step = 0;             ///< in its program
    std::size_t receives = 0;         ///< begun so far
    std::uint32_t next_send = 0;      ///< the message of the next Send
    std::uint32_t next_to_leave = 0;  ///< fifo: the first message that has not left yet
    std::uint32_t outstanding = 0;    ///< messages sent and not delivered
    std::uint32_t queued = 0;         ///< fifo: of these, those that leave one at a time
    std::uint32_t awaited = nothing;  ///< a message, all_sends or nothing
    bool finished = false;
    double waits_since = 0;
    double sends_since = 0;
    double factor = 1;  ///< of its computations
  };
  /// The message that flows in a place of the network.
  struct Transfer {
    std::uint32_t message = 0;
    double begin_s = 0;
  };

  bool is_background(std::uint32_t message) const { return message >= num_messages_; }
  const Message& message(std::uint32_t m) const {
    return is_background(m) ? background_[m - num_messages_] : simulation_.messages_[m];
  }

  void add_background(const std::vector<BackgroundFlow>& flows) {
    const std::uint32_t devices = platform_.num_devices();
    for (std::size_t i = 0; i < flows.size(); ++i) {
      const BackgroundFlow& f = flows[i];
      const std::string where = fmt::format("background flow {}", i);
      if (f.source >= devices || f.destination >= devices || f.source == f.destination) {
        throw Error(where, fmt::format("source {} and destination {}", f.source, f.destination),
                    fmt::format("two of the {} devices", devices));
      }
      if (!(f.start_s >= 0) || !std::isfinite(f.start_s)) {
        throw Error(where, fmt::format("a start at {} s", f.start_s), "zero or later");
      }
    }
    std::vector<std::size_t> order(flows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&flows](std::size_t a, std::size_t b) {
      return flows[a].start_s < flows[b].start_s;
    });
    std::vector<std::uint32_t> route_of(std::size_t{devices} * devices, nothing);
    std::vector<std::optional<RouteTree>> trees(devices);
    for (const std::size_t i : order) {
      const BackgroundFlow& f = flows[i];
      std::uint32_t& route = route_of[std::size_t{f.source} * devices + f.destination];
      if (route == nothing) {
        std::optional<RouteTree>& tree = trees[f.destination];
        if (!tree) tree = platform_.routes_to(f.destination);
        route = static_cast<std::uint32_t>(routes_.size());
        routes_.push_back(Simulation::add_route(platform_, f.source, *tree, hops_));
      }
      background_.push_back(
          {f.bytes, route, f.source, f.destination, static_cast<std::uint32_t>(i)});
      background_start_s_.push_back(f.start_s);
    }
    if (!flows.empty()) events_.set(background_timer_, background_start_s_.front());
  }

  void handle(std::uint32_t event) {
    ++result_.events;
    if (event < background_timer_) {
      advance(event);
    } else if (event == background_timer_) {
      --result_.events;
      start_background();
    } else if (network_->flows(event - first_flow_)) {
      deliver(event - first_flow_);
    } else {
      const std::uint32_t flow = event - first_flow_;
      const Message& m = message(transfers_[flow].message);
      const Route& route = routes_[m.route];
      network_->begin(flow, {hops_.data() + route.first_hop, route.num_hops},
                      static_cast<double>(m.bytes), now_);
    }
  }

  void advance(std::uint32_t rank) {
    Rank& p = ranks_[rank];
    const Program& program = simulation_.programs_.ranks[rank];
    for (; p.step < program.size(); ++p.step) {
      const Instruction& instruction = program[p.step];
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        const double seconds = p.factor * compute->seconds;
        if (must_wait_for_sends(p)) return wait_for(rank, all_sends);
        if (seconds == 0) continue;
        result_.ranks[rank].compute_s += seconds;
        if (record_) {
          result_.intervals.push_back(
              {IntervalKind::Compute, rank, rank, compute->label, now_, now_ + seconds, 0});
        }
        events_.set(rank, now_ + seconds);
        ++p.step;
        return;
      }
      if (std::holds_alternative<Receive>(instruction)) {
        const std::uint32_t awaited = simulation_.received_[rank][p.receives++];
        if (delivered_[awaited]) continue;
        ++p.step;
        return wait_for(rank, awaited);
      }
      const bool follows_receive =
          p.step > 0 && std::holds_alternative<Receive>(program[p.step - 1]);
      if (follows_receive && must_wait_for_sends(p)) return wait_for(rank, all_sends);
      const std::uint32_t sent = p.next_send++;
      if (p.outstanding++ == 0) p.sends_since = now_;
      ++in_flight_;
      if (in_queue(sent)) {
        if (p.queued++ > 0) continue;
        p.next_to_leave = sent + 1;
      }
      start(sent);
    }
    if (must_wait_for_sends(p)) return wait_for(rank, all_sends);
    if (p.finished) return;
    p.finished = true;
    result_.finish_s[rank] = now_;
    --unfinished_;
  }

  bool in_queue(std::uint32_t message) const {
    return send_order_ == SendOrder::Fifo && simulation_.queues_[message];
  }

  bool must_wait_for_sends(const Rank& p) const {
    return send_order_ == SendOrder::Block && p.outstanding > 0;
  }

  void wait_for(std::uint32_t rank, std::uint32_t awaited) {
    ranks_[rank].awaited = awaited;
    ranks_[rank].waits_since = now_;
  }

  void resume(std::uint32_t rank) {
    Rank& p = ranks_[rank];
    result_.ranks[rank].waiting_s += now_ - p.waits_since;
    if (record_ && now_ > p.waits_since) {
      const bool sends = p.awaited == all_sends;
      const Message* message = sends ? nullptr : &simulation_.messages_[p.awaited];
      result_.intervals.push_back({IntervalKind::Wait, rank, sends ? rank : message->sender,
                                   sends ? 0 : message->number, p.waits_since, now_, 0});
    }
    p.awaited = nothing;
    advance(rank);
  }

  void start(std::uint32_t m) {
    const Route& route = routes_[message(m).route];
    const std::uint32_t flow = network_->reserve();
    if (flow >= transfers_.size()) transfers_.resize(flow + 1);
    transfers_[flow] = {m, now_};
    events_.set(first_flow_ + flow,
                now_ + route.latency_s + (is_background(m) ? 0 : message_overhead_s_));
  }

  void deliver(std::uint32_t flow) {
    const auto [m, begin_s] = transfers_[flow];
    network_->end(flow, now_);
    const bool background = is_background(m);
    const Message& delivered = message(m);
    if (record_) {
      result_.intervals.push_back({background ? IntervalKind::Background : IntervalKind::Transfer,
                                   delivered.sender, delivered.receiver, delivered.number, begin_s,
                                   now_, delivered.bytes});
    }
    if (background) {
      --background_in_flight_;
      return;
    }
    delivered_[m] = 1;
    --in_flight_;
    ++result_.messages;
    result_.message_bytes += delivered.bytes;
    Rank& sender = ranks_[delivered.sender];
    if (--sender.outstanding == 0) {
      result_.ranks[delivered.sender].transfer_s += now_ - sender.sends_since;
      if (sender.awaited == all_sends) resume(delivered.sender);
    }
    if (in_queue(m) && --sender.queued > 0) {
      while (!in_queue(sender.next_to_leave)) ++sender.next_to_leave;
      start(sender.next_to_leave++);
    }
    if (ranks_[delivered.receiver].awaited == m) resume(delivered.receiver);
  }

  void start_background() {
    while (next_background_ < background_.size() && background_start_s_[next_background_] == now_) {
      start(num_messages_ + static_cast<std::uint32_t>(next_background_++));
      if (++background_in_flight_ <= max_background_at_once) continue;
      throw Error("background flows", fmt::format("over {} at once", max_background_at_once),
                  "fewer or smaller ones");
    }
    if (next_background_ < background_.size()) {
      events_.set(background_timer_, background_start_s_[next_background_]);
    }
  }

  [[noreturn]] void fail_deadlock() const {
    // Each waiting rank waits for one that has yet to send, so following them meets a cycle.
    std::uint32_t p = 0;
    while (ranks_[p].finished) ++p;
    std::vector<char> seen(ranks_.size(), 0);
    while (!seen[p]) {
      if (ranks_[p].finished || ranks_[p].awaited >= num_messages_) {
        throw Error("simulation: a message on its way never arrives; expected faster links");
      }
      seen[p] = 1;
      p = simulation_.messages_[ranks_[p].awaited].sender;
    }
    std::string chain;
    const std::uint32_t first = p;
    do {
      const Message& message = simulation_.messages_[ranks_[p].awaited];
      chain += fmt::format("{}rank {} waits for message {} from rank {}", chain.empty() ? "" : ", ",
                           p, message.number, message.sender);
      p = message.sender;
    } while (p != first);
    throw Error("deadlock: " + chain);
  }

  const Simulation& simulation_;
  const Platform& platform_;
  SendOrder send_order_;
  bool record_;
  double message_overhead_s_;
  std::uint32_t num_messages_;       ///< of ranks; background flows follow
  std::vector<Message> background_;  ///< by start
  std::vector<double> background_start_s_;
  std::size_t next_background_ = 0;
  std::size_t background_in_flight_ = 0;
  std::vector<Route> routes_;  ///< the simulation's, then those of background flows
  std::vector<std::uint32_t> hops_;
  std::uint32_t background_timer_;
  std::uint32_t first_flow_;  ///< event ids: ranks, background_timer_, flows
  std::optional<FairNetwork> network_;
  EventHeap events_;
  double now_ = 0;
  std::vector<Rank> ranks_;
  std::vector<char> delivered_;
  std::vector<Transfer> transfers_;
  std::uint32_t unfinished_ = 0;
  std::uint64_t in_flight_ = 0;  ///< messages of ranks
  RunResult result_;
};

RunResult Simulation::run(const RunOptions& options) const {
  return EventLoop(*this, options).run();
}

}  // namespace kvcast::simulate
