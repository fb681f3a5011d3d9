#include "simulate/serving/serving.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/base/words.h"

namespace kvcast::simulate {
namespace {

constexpr Words<Router, 3> routers = {{{Router::RoundRobin, "round-robin"},
                                       {Router::LeastLoaded, "least-loaded"},
                                       {Router::PrefixAware, "prefix-aware"}}};

constexpr double never = std::numeric_limits<double>::infinity();

/// A sequence on its way to a scheduler.
struct Coming {
  double time = 0;
  std::uint64_t number = 0;  ///< those of one time come in this order
  bool to_decoder = false;
  std::unique_ptr<Sequence> sequence;
};

/// All that is under way, soonest first.
class ComingQueue {
 public:
  double time() const { return heap_.empty() ? never : heap_.front().time; }
  void push(double time, bool to_decoder, std::unique_ptr<Sequence> s) {
    heap_.push_back({time, number_++, to_decoder, std::move(s)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  Coming pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Coming c = std::move(heap_.back());
    heap_.pop_back();
    return c;
  }

 private:
  static bool later(const Coming& a, const Coming& b) {
    return std::pair(a.time, a.number) > std::pair(b.time, b.number);
  }
  std::vector<Coming> heap_;
  std::uint64_t number_ = 0;
};

struct Server {
  std::unique_ptr<Scheduler> scheduler;
  StepClock* clock = nullptr;
  bool decodes_only = false;
  double busy_until = never;  ///< never: idle
  double link_free_at = 0;    ///< of its caches' way to the decoders
};

class Serving {
 public:
  Serving(const ServingSetup& setup, RequestSource& requests, const Slo& slo,
          const ServingWatch& watch)
      : setup_(setup), requests_(requests), watch_(watch), meter_(slo) {
    add_servers(setup.servers, false);
    num_first_ = servers_.size();
    if (setup.decoders) add_servers(*setup.decoders, true);
  }

  ServingTimes run() {
    if (setup_.closed_loop) {
      for (std::uint64_t user = 0; user < setup_.closed_loop->users; ++user) send_next(0);
    } else {
      upcoming_ = requests_.next();
    }
    while (true) {
      stop_if_interrupted();
      take_arrivals();
      double now = coming_.time();
      bool is_idle = true;
      for (const Server& s : servers_) {
        now = std::min(now, s.busy_until);
        is_idle &= s.busy_until == never;
      }
      if (now == never) break;
      if (is_idle) servers_[0].clock->idle(now - now_);
      now_ = now;
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        if (servers_[i].busy_until <= now) end_step(i, now);
      }
      while (coming_.time() <= now) hand_over(coming_.pop(), now);
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        if (servers_[i].busy_until == never) begin_step(i, now);
      }
    }
    for (const Server& s : servers_) meter_.add(*s.scheduler);
    return meter_.take();
  }

 private:
  void add_servers(const Servers& servers, bool decode) {
    if (servers.count == 0) throw Error("a number of servers", "0", "at least 1");
    const std::uint64_t blocks = servers.settings.num_blocks;
    if (servers.count > all_blocks / std::max<std::uint64_t>(blocks, 1)) {
      throw Error("servers", fmt::format("{} with {} blocks each", servers.count, blocks),
                  fmt::format("at most {} blocks in all", all_blocks));
    }
    for (std::uint64_t i = 0; i < servers.count; ++i) {
      servers_.push_back({make_scheduler(servers.settings), servers.clock.get(), decode});
    }
  }

  /// False: the request is refused.
  bool arrive(ServingRequest request) {
    // A double of 1e10 seconds is right to two microseconds.
    constexpr double latest_s = 1e10;
    if (request.arrival_s > latest_s) {
      throw Error(
          fmt::format("request {}", request.id),
          fmt::format("an arrival at {:g} s", request.arrival_s),
          fmt::format("one before {:g} s, where times of steps can be told apart", latest_s));
    }
    meter_.arrived();
    if (const auto reason = servers_[0].clock->refuses(request)) {
      meter_.rejected();
      if (watch_.on_rejected) watch_.on_rejected(request, *reason);
      return false;
    }
    StepClock& clock = *servers_[0].clock;
    tokeniser_free_at_ =
        std::max(tokeniser_free_at_, request.arrival_s) + clock.tokenising_seconds(request);
    const double seen = tokeniser_free_at_ + clock.seconds_before(request);
    auto s = std::make_unique<Sequence>();
    s->dropped = servers_[0].clock->dropped_tokens(request);
    s->request = std::move(request);
    coming_.push(seen, false, std::move(s));
    return true;
  }

  /// Those that may be seen before anything else happens. Not all at once: a trace may be long.
  void take_arrivals() {
    while (upcoming_ && upcoming_->arrival_s <= coming_.time()) {
      arrive(*std::move(upcoming_));
      upcoming_ = requests_.next();
    }
  }

  /// A client's next request that is not refused, if there is one.
  void send_next(double now) {
    while (std::optional<ServingRequest> request = requests_.next()) {
      request->arrival_s = now;
      if (arrive(*std::move(request))) return;
    }
  }
  void client_is_free(double now) {
    if (setup_.closed_loop) send_next(now + setup_.closed_loop->think_s);
  }

  Server& choose(std::size_t first, std::size_t end, const ServingRequest& request) {
    if (end - first == 1) return servers_[first];
    if (setup_.router == Router::RoundRobin) {
      std::size_t& turn = first == 0 ? turn_ : decoder_turn_;
      return servers_[first + turn++ % (end - first)];
    }
    const auto rank = [&](const Server& s) {
      const std::size_t hits =
          setup_.router == Router::PrefixAware ? s.scheduler->num_hits(request) : 0;
      return std::pair(hits, ~(s.scheduler->num_waiting() + s.scheduler->num_running()));
    };
    const auto begin = servers_.begin();
    return *std::max_element(begin + static_cast<std::ptrdiff_t>(first),
                             begin + static_cast<std::ptrdiff_t>(end),
                             [&](const Server& a, const Server& b) { return rank(a) < rank(b); });
  }

  void hand_over(Coming c, double now) {
    Sequence& s = *c.sequence;
    Server& server = c.to_decoder ? choose(num_first_, servers_.size(), s.request)
                                  : choose(0, num_first_, s.request);
    s.leaves_after = setup_.decoders && !c.to_decoder ? 1 : s.request.output_tokens;
    const std::optional<std::string> reason = server.scheduler->add(c.sequence);
    if (reason) reject(c.sequence->request, *reason, now);
  }

  void reject(const ServingRequest& request, const std::string& reason, double now) {
    meter_.rejected();
    if (watch_.on_rejected) watch_.on_rejected(request, reason);
    client_is_free(now);
  }

  void begin_step(std::size_t index, double now) {
    Server& server = servers_[index];
    const std::vector<ScheduledPart>& parts = server.scheduler->schedule();
    for (const auto& s : server.scheduler->take_rejected()) {
      reject(s->request, "more than the server's cache and limits take at once", now);
    }
    if (parts.empty()) return;
    for (const ScheduledPart& part : parts) {
      if (!part.sequence->scheduled_s) part.sequence->scheduled_s = now;
    }
    const double seconds = server.clock->seconds(parts);
    KVCAST_ASSERT(seconds >= 0 && seconds < never);
    server.busy_until = now + seconds;
    meter_.step(seconds);
    if (watch_.on_step) watch_.on_step({index, now, seconds, parts, server.scheduler.get()});
  }

  void end_step(std::size_t index, double now) {
    Server& server = servers_[index];
    server.busy_until = never;
    for (auto& s : server.scheduler->end_step([&](Sequence& s) { meter_.token(s, now); })) {
      if (s->is_done()) {
        if (watch_.on_finished) watch_.on_finished(*s);
        client_is_free(now);
        continue;
      }
      const double seconds =
          static_cast<double>(s->request.prompt_tokens) * setup_.link.seconds_per_token;
      server.link_free_at = std::max(now, server.link_free_at) + seconds;
      s->received = s->request.prompt_tokens;
      s->computed = 0;
      coming_.push(server.link_free_at + setup_.link.latency_s, true, std::move(s));
    }
  }

  const ServingSetup& setup_;
  RequestSource& requests_;
  const ServingWatch& watch_;
  ServingMeter meter_;
  std::vector<Server> servers_;
  std::size_t num_first_ = 0;  ///< of servers that requests come to
  double now_ = 0;
  double tokeniser_free_at_ = 0;
  std::size_t turn_ = 0;
  std::size_t decoder_turn_ = 0;
  std::optional<ServingRequest> upcoming_;
  ComingQueue coming_;
};

}  // namespace

std::string_view name(Router router) { return word_for(router, routers); }
Router parse_router(std::string_view text) { return parse_word("router", text, routers); }

ServingTimes serve(const ServingSetup& setup, RequestSource& requests, const Slo& slo,
                   const ServingWatch& watch) {
  return Serving(setup, requests, slo, watch).run();
}

}  // namespace kvcast::simulate
