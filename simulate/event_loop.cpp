#include "simulate/event_loop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::simulate {
namespace {

constexpr std::uint32_t nothing = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t all_sends = nothing - 1;
/// Ours: each that begins or ends changes the rates of all others, and no link carries so many.
constexpr std::size_t max_background_at_once = 2000;

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

std::vector<double> capacities(const Platform& platform, const std::vector<double>& factors) {
  if (!factors.empty() && factors.size() != platform.links().size()) {
    throw Error("bandwidth factors", fmt::format("{} of them", factors.size()),
                fmt::format("one for each of the {} links", platform.links().size()));
  }
  std::vector<double> bytes_per_s;
  for (std::size_t i = 0; i < platform.links().size(); ++i) {
    const double factor = factors.empty() ? 1 : factors[i];
    if (!is_positive(factor)) {
      throw Error("bandwidth factors", fmt::format("{}", factor), "numbers above 0");
    }
    bytes_per_s.push_back(factor * platform.links()[i].bytes_per_s);
  }
  return bytes_per_s;
}

}  // namespace

EventLoop::EventLoop(const Simulation& simulation, const RunOptions& options,
                     std::span<const double> compute_factors)
    : simulation_(simulation),
      fifo_(options.send_order == SendOrder::Fifo),
      record_(options.record),
      message_overhead_s_(options.message_overhead_s),
      num_messages_(static_cast<std::uint32_t>(simulation.messages_.size())),
      routes_(simulation.routes_),
      hops_(simulation.hops_),
      background_timer_(simulation.platform().num_devices()),
      first_flow_(background_timer_ + 1),
      ranks_(simulation.platform().num_devices()),
      delivered_(simulation.messages_.size(), 0),
      unfinished_(simulation.platform().num_devices()) {
  if (!(message_overhead_s_ >= 0) || !std::isfinite(message_overhead_s_)) {
    throw Error("message overhead", fmt::format("{} s", message_overhead_s_), "zero or more");
  }
  if (!compute_factors.empty() && compute_factors.size() != ranks_.size()) {
    throw Error("compute factors", fmt::format("{} of them", compute_factors.size()),
                fmt::format("one for each of the {} ranks", ranks_.size()));
  }
  for (std::size_t p = 0; p < ranks_.size(); ++p) {
    ranks_[p].step = simulation.first_step_[p];
    ranks_[p].end = simulation.first_step_[p + 1];
    ranks_[p].next = simulation.first_message_[p];
    ranks_[p].awaited = nothing;
    if (compute_factors.empty()) continue;
    ranks_[p].factor = compute_factors[p];
    if (!is_positive(compute_factors[p])) {
      throw Error("compute factors", fmt::format("{}", compute_factors[p]), "numbers above 0");
    }
  }
  add_background(options.background);
  std::size_t max_hops = 1;
  for (const Route& r : routes_) max_hops = std::max<std::size_t>(max_hops, r.num_hops);
  FairNetwork::Listener* listener = record_ ? this : nullptr;
  network_.emplace(capacities(simulation.platform(), options.bandwidth_factors), max_hops,
                   first_flow_, listener);
  result_.finish_s.resize(ranks_.size());
  result_.ranks.resize(ranks_.size());
}

void EventLoop::add_background(const std::vector<BackgroundFlow>& flows) {
  const std::uint32_t devices = simulation_.platform().num_devices();
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
      if (!tree) tree = simulation_.platform().routes_to(f.destination);
      route = static_cast<std::uint32_t>(routes_.size());
      routes_.push_back(Simulation::add_route(simulation_.platform(), f.source, *tree, hops_));
    }
    background_.push_back({f.bytes, route, f.source, f.destination, static_cast<std::uint32_t>(i)});
    background_start_s_.push_back(f.start_s);
  }
  if (!flows.empty()) events_.set(background_timer_, background_start_s_.front());
}

RunResult EventLoop::run() {
  for (std::uint32_t p = 0; p < ranks_.size(); ++p) advance(p);
  network_->settle(now_, events_);
  while (unfinished_ > 0 || in_flight_ > 0) {
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
  result_.ttft_s = result_.finish_s.back();
  result_.makespan_s = *std::max_element(result_.finish_s.begin(), result_.finish_s.end());
  result_.link_bytes = network_->link_bytes(now_);
  const std::vector<PlatformLink>& links = simulation_.platform().links();
  result_.link_utilisation = result_.link_bytes;
  for (std::size_t i = 0; i < links.size(); ++i) {
    double& share = result_.link_utilisation[i];
    if (share > 0) share /= now_ * network_->bytes_per_s(i);
  }
  return std::move(result_);
}

void EventLoop::handle(std::uint32_t event) {
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
    network_->begin(flow, hops(routes_[m.route]), static_cast<double>(m.bytes), now_);
  }
}

void EventLoop::advance(std::uint32_t rank) {
  Rank& p = ranks_[rank];
  while (p.step < p.end) {
    const Simulation::Step& step = simulation_.steps_[p.step++];
    switch (step.kind) {
      case Kind::Compute: {
        const double seconds = p.factor * step.seconds;
        if (seconds == 0) break;
        result_.ranks[rank].compute_s += seconds;
        if (record_) {
          result_.intervals.push_back(
              {IntervalKind::Compute, rank, rank, step.label, now_, now_ + seconds, 0});
        }
        events_.set(rank, now_ + seconds);
        return;
      }
      case Kind::Send:
        if (p.outstanding++ == 0) p.sends_since = now_;
        ++in_flight_;
        if (fifo_ && p.outstanding > 1) break;
        p.next = step.message + 1;
        start(step.message);
        break;
      case Kind::Receive:
        if (delivered_[step.message]) break;
        wait_for(rank, step.message);
        return;
      case Kind::WaitSend:
        if (p.outstanding == 0) break;
        wait_for(rank, all_sends);
        return;
    }
  }
  if (p.finished) return;
  p.finished = true;
  result_.finish_s[rank] = now_;
  --unfinished_;
}

void EventLoop::wait_for(std::uint32_t rank, std::uint32_t awaited) {
  ranks_[rank].awaited = awaited;
  ranks_[rank].waits_since = now_;
}

void EventLoop::resume(std::uint32_t rank) {
  Rank& p = ranks_[rank];
  result_.ranks[rank].waiting_s += now_ - p.waits_since;
  if (record_ && now_ > p.waits_since) {
    const bool sends = p.awaited == all_sends;
    const Message* message = sends ? nullptr : &simulation_.messages_[p.awaited];
    result_.intervals.push_back({IntervalKind::Wait, rank, sends ? rank : message->sender,
                                 sends ? 0 : message->tag, p.waits_since, now_, 0});
  }
  p.awaited = nothing;
  advance(rank);
}

void EventLoop::start(std::uint32_t m) {
  const Route& route = routes_[message(m).route];
  const std::uint32_t flow = network_->reserve();
  if (flow >= transfers_.size()) transfers_.resize(flow + 1);
  transfers_[flow] = {m, now_};
  events_.set(first_flow_ + flow,
              now_ + route.latency_s + (is_background(m) ? 0 : message_overhead_s_));
}

void EventLoop::deliver(std::uint32_t flow) {
  const auto [m, begin_s] = transfers_[flow];
  network_->end(flow, now_);
  const bool background = is_background(m);
  const Message& delivered = message(m);
  if (record_) {
    result_.intervals.push_back({background ? IntervalKind::Background : IntervalKind::Transfer,
                                 delivered.sender, delivered.receiver, delivered.tag, begin_s, now_,
                                 delivered.bytes});
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
  } else if (fifo_) {
    start(sender.next++);
  }
  if (ranks_[delivered.receiver].awaited == m) resume(delivered.receiver);
}

void EventLoop::start_background() {
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

void EventLoop::rate_changed(std::uint32_t flow, double now, double bytes_per_s) {
  result_.rate_changes.push_back({now, transfers_[flow].message, bytes_per_s});
}

void EventLoop::fail_deadlock() const {
  // Whoever waits, waits for a rank that has yet to send, so following them meets a cycle.
  std::uint32_t p = 0;
  while (ranks_[p].finished) ++p;
  const auto waits_for_message = [&](std::uint32_t rank) {
    return ranks_[rank].awaited < simulation_.messages_.size();
  };
  std::vector<char> seen(ranks_.size(), 0);
  while (!seen[p]) {
    if (ranks_[p].finished || !waits_for_message(p)) {
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
                         p, message.tag, message.sender);
    p = message.sender;
  } while (p != first);
  throw Error("deadlock: " + chain);
}

}  // namespace kvcast::simulate
