#include "simulate/serving/serving.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/base/units.h"
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

/// A step on its way through a server's stages.
struct UnderWay {
  double end_s = 0;
  std::size_t group = 0;          ///< of schedulers
  std::vector<Scheduler*> ranks;  ///< those with parts
};

struct Server {
  /// Groups of ranks that step together: one; or as many as stages, which take turns.
  std::vector<std::unique_ptr<Scheduler>> schedulers;
  std::size_t ranks = 1;
  StepClock* clock = nullptr;
  bool decodes_only = false;
  std::uint64_t stages = 1;
  std::vector<UnderWay> under_way;    ///< in the order in which they end
  std::vector<double> stage_free_at;  ///< by stage
  std::uint64_t steps = 0;
  double link_free_at = 0;  ///< of its caches' way to the decoders

  std::size_t num_groups() const { return schedulers.size() / ranks; }
  double next_end() const { return under_way.empty() ? never : under_way.front().end_s; }
  std::size_t num_requests() const {
    std::size_t n = 0;
    for (const auto& s : schedulers) n += s->num_waiting() + s->num_running();
    return n;
  }
  std::size_t num_hits(const ServingRequest& request) const {
    std::size_t n = 0;
    for (const auto& s : schedulers) n = std::max(n, s->num_hits(request));
    return n;
  }
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
        now = std::min(now, s.next_end());
        is_idle &= s.under_way.empty();
      }
      if (now == never) break;
      if (is_idle) servers_[0].clock->idle(now - now_);
      now_ = now;
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        while (servers_[i].next_end() <= now) end_step(servers_[i], now);
      }
      while (coming_.time() <= now) hand_over(coming_.pop(), now);
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        while (begin_step(i, now)) continue;
      }
    }
    for (const Server& server : servers_) {
      meter_.server();
      for (const auto& scheduler : server.schedulers) meter_.add(*scheduler);
    }
    return meter_.take();
  }

 private:
  void add_servers(const Servers& servers, bool decode) {
    if (servers.count == 0) throw Error("a number of servers", "0", "at least 1");
    const std::uint64_t blocks = servers.settings.num_blocks;
    const std::uint64_t caches = checked_multiply(servers.count, servers.ranks);
    if (caches > all_blocks / std::max<std::uint64_t>(blocks, 1)) {
      throw Error("servers", fmt::format("{} with {} blocks each", caches, blocks),
                  fmt::format("at most {} blocks in all", all_blocks));
    }
    SchedulerSettings settings = servers.settings;
    const std::uint64_t stages = settings.pipeline_stages;
    std::uint64_t groups = 1;
    if (settings.policy == Policy::VllmV0 || settings.policy == Policy::Static) {
      groups = stages;
      settings.num_blocks = std::max<std::uint64_t>(1, settings.num_blocks / groups);
      settings.pipeline_stages = 1;
    }
    for (std::uint64_t i = 0; i < servers.count; ++i) {
      Server server;
      for (std::uint64_t k = 0; k < groups * servers.ranks; ++k) {
        server.schedulers.push_back(make_scheduler(settings));
      }
      server.ranks = servers.ranks;
      server.clock = servers.clock.get();
      server.decodes_only = decode;
      server.stages = stages;
      server.stage_free_at.resize(stages);
      servers_.push_back(std::move(server));
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
    meter_.arrived(request.arrival_s);
    if (const auto reason = servers_[0].clock->refuses(request)) {
      meter_.rejected(*reason);
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
    return *least_loaded(servers_.begin() + static_cast<std::ptrdiff_t>(first),
                         servers_.begin() + static_cast<std::ptrdiff_t>(end), request,
                         [](const Server& s) -> const Server& { return s; });
  }

  /// Of several, the first with the most of the prompt in its cache, where the router looks at it,
  /// then with the fewest requests.
  template <typename It, typename Get>
  It least_loaded(It begin, It end, const ServingRequest& request, const Get& get) const {
    const auto rank = [&](const auto& of) {
      const auto& s = get(of);
      const std::size_t hits = setup_.router == Router::PrefixAware ? s.num_hits(request) : 0;
      return std::pair(hits, ~s.num_requests());
    };
    return std::max_element(begin, end,
                            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  }

  void hand_over(Coming c, double now) {
    Sequence& s = *c.sequence;
    Server& server = c.to_decoder ? choose(num_first_, servers_.size(), s.request)
                                  : choose(0, num_first_, s.request);
    s.leaves_after = setup_.decoders && !c.to_decoder ? 1 : s.request.output_tokens;
    const auto& scheduler =
        server.schedulers.size() == 1
            ? server.schedulers.front()
            : *least_loaded(server.schedulers.begin(), server.schedulers.end(), s.request,
                            [](const auto& of) -> const Scheduler& { return *of; });
    const std::optional<std::string> reason = scheduler->add(c.sequence);
    if (reason) reject(c.sequence->request, *reason, now);
  }

  void reject(const ServingRequest& request, const std::string& reason, double now) {
    meter_.rejected(reason);
    if (watch_.on_rejected) watch_.on_rejected(request, reason);
    client_is_free(now);
  }

  /// False: there is no place for another step, or nothing to do.
  bool begin_step(std::size_t index, double now) {
    Server& server = servers_[index];
    if (server.under_way.size() == server.stages) return false;
    const std::size_t groups = server.num_groups();
    for (std::size_t turn = 0; turn < groups; ++turn) {
      const std::size_t group = (server.steps + turn) % groups;
      const bool takes_turns = groups > 1;
      const auto has_step = [&](const UnderWay& u) { return u.group == group; };
      if (takes_turns && std::any_of(server.under_way.begin(), server.under_way.end(), has_step)) {
        continue;
      }
      if (begin_step_of(group, index, now)) return true;
    }
    return false;
  }

  bool begin_step_of(std::size_t group, std::size_t index, double now) {
    Server& server = servers_[index];
    UnderWay step{0, group, {}};
    parts_.assign(server.ranks, {});
    for (std::size_t r = 0; r < server.ranks; ++r) {
      Scheduler& scheduler = *server.schedulers[group * server.ranks + r];
      parts_[r] = scheduler.schedule();
      for (const auto& s : scheduler.take_rejected()) {
        reject(s->request, "more than the server's cache and limits take at once", now);
      }
      if (!parts_[r].empty()) step.ranks.push_back(&scheduler);
      for (const ScheduledPart& part : parts_[r]) {
        if (!part.sequence->scheduled_s) part.sequence->scheduled_s = now;
      }
    }
    if (step.ranks.empty()) return false;
    server.clock->stages(parts_, stages_);
    KVCAST_ASSERT(stages_.size() == server.stages);
    step.end_s = now;
    double busy_s = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      KVCAST_ASSERT(stages_[i].work >= 0 && stages_[i].work + stages_[i].hop < never);
      double& free_at = server.stage_free_at[i];
      free_at = std::max(step.end_s, free_at) + stages_[i].work;
      step.end_s = free_at + stages_[i].hop;
      busy_s += stages_[i].work;
    }
    meter_.step(busy_s / static_cast<double>(server.stages));
    for (std::size_t r = 0; watch_.on_step && r < server.ranks; ++r) {
      if (parts_[r].empty()) continue;
      const Scheduler* const scheduler = server.schedulers[group * server.ranks + r].get();
      const std::size_t row = server.steps % server.stages * server.ranks + r;
      watch_.on_step({index, row, now, step.end_s - now, parts_[r], scheduler});
    }
    ++server.steps;
    server.under_way.push_back(std::move(step));
    return true;
  }

  void end_step(Server& server, double now) {
    const UnderWay step = std::move(server.under_way.front());
    server.under_way.erase(server.under_way.begin());
    for (Scheduler* const scheduler : step.ranks) end_step(server, *scheduler, now);
  }

  void end_step(Server& server, Scheduler& scheduler, double now) {
    for (auto& s : scheduler.end_step([&](Sequence& s) { meter_.token(s, now); })) {
      if (s->is_done()) {
        if (watch_.on_finished) watch_.on_finished(*s);
        client_is_free(now);
        continue;
      }
      const double seconds = static_cast<double>(scheduler.rows_for(*s, s->request.prompt_tokens)) *
                             setup_.link.seconds_per_token;
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
  std::vector<std::span<const ScheduledPart>> parts_;  ///< of a step that begins, by rank
  std::vector<StageSeconds> stages_;
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
