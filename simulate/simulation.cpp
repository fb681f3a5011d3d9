#include "simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "simulate/event_loop.h"

namespace kvcast::simulate {
namespace {

constexpr Words<SendOrder, 3> send_orders = {
    {{SendOrder::Async, "async"}, {SendOrder::Block, "block"}, {SendOrder::Fifo, "fifo"}}};

[[noreturn]] void fail_step(std::size_t rank, std::size_t step, const std::string& found,
                            const std::string& expected) {
  throw Error(fmt::format("rank {}, step {}", rank, step), found, expected);
}

void check_peer(std::size_t rank, std::size_t step, std::uint32_t peer, std::size_t ranks) {
  if (peer < ranks && peer != rank) return;
  fail_step(rank, step, fmt::format("peer {}", peer),
            fmt::format("another one of the {} ranks", ranks));
}

}  // namespace

std::size_t Programs::num_instructions() const {
  std::size_t sum = 0;
  for (const Program& program : ranks) sum += program.size();
  return sum;
}

void check_instructions(std::size_t instructions) {
  if (instructions <= max_instructions) return;
  throw Error("simulation", fmt::format("{} computations and messages", instructions),
              fmt::format("at most {}: fewer devices or layers", max_instructions));
}

std::string_view name(SendOrder order) { return word_for(order, send_orders); }

SendOrder parse_send_order(std::string_view word) {
  return parse_word("send order", word, send_orders);
}

Simulation::Simulation(Platform platform, const Programs& programs)
    : platform_(std::move(platform)), labels_(programs.labels) {
  if (programs.ranks.size() != platform_.num_devices()) {
    throw Error("programs", fmt::format("{} ranks", programs.ranks.size()),
                fmt::format("one for each of the {} devices", platform_.num_devices()));
  }
  compile(programs);
  match(programs);
  add_routes();
}

void Simulation::compile(const Programs& programs) {
  const std::size_t ranks = programs.ranks.size();
  check_instructions(programs.num_instructions());
  std::size_t sends = 0;
  for (const Program& program : programs.ranks) {
    sends += static_cast<std::size_t>(std::count_if(
        program.begin(), program.end(),
        [](const Instruction& instruction) { return std::holds_alternative<Send>(instruction); }));
  }
  steps_.reserve(programs.num_instructions());
  messages_.reserve(sends);
  for (std::size_t p = 0; p < ranks; ++p) {
    first_step_.push_back(static_cast<std::uint32_t>(steps_.size()));
    first_message_.push_back(static_cast<std::uint32_t>(messages_.size()));
    for (std::size_t i = 0; i < programs.ranks[p].size(); ++i) {
      const Instruction& instruction = programs.ranks[p][i];
      Step step;
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        if (!(compute->seconds >= 0) || !std::isfinite(compute->seconds)) {
          fail_step(p, i, fmt::format("{} s", compute->seconds), "a duration of zero or more");
        }
        if (compute->label >= labels_.size()) {
          fail_step(p, i, fmt::format("label {}", compute->label),
                    fmt::format("one of the {} labels", labels_.size()));
        }
        step.kind = Kind::Compute;
        step.seconds = compute->seconds;
        step.label = compute->label & 0xffffffU;
      } else if (const auto* send = std::get_if<Send>(&instruction)) {
        check_peer(p, i, send->to, ranks);
        step.kind = Kind::Send;
        step.message = static_cast<std::uint32_t>(messages_.size());
        messages_.push_back({send->bytes, 0, static_cast<std::uint32_t>(p), send->to, send->tag});
      } else if (const auto* receive = std::get_if<Receive>(&instruction)) {
        check_peer(p, i, receive->from, ranks);
        step.kind = Kind::Receive;
      }
      steps_.push_back(step);
    }
  }
  first_step_.push_back(static_cast<std::uint32_t>(steps_.size()));
  first_message_.push_back(static_cast<std::uint32_t>(messages_.size()));
}

void Simulation::match(const Programs& programs) {
  const std::size_t ranks = programs.ranks.size();
  std::vector<std::vector<std::uint32_t>> sent(ranks);       // messages to each receiver
  std::vector<std::size_t> taken(ranks);                     // by one receiver, of each sender
  std::vector<std::vector<std::uint32_t>> by_sender(ranks);  // of `sent` to one receiver
  for (std::uint32_t m = 0; m < messages_.size(); ++m) sent[messages_[m].receiver].push_back(m);
  for (std::size_t p = 0; p < ranks; ++p) {
    for (const std::uint32_t m : sent[p]) by_sender[messages_[m].sender].push_back(m);
    // Messages are mostly received in the order sent; only those of a sender from which they are
    // not need a search.
    std::vector<char> in_order(ranks, 1);
    std::vector<std::size_t> seen(ranks, 0);
    for (const Instruction& instruction : programs.ranks[p]) {
      const auto* receive = std::get_if<Receive>(&instruction);
      if (receive == nullptr) continue;
      const auto& from = by_sender[receive->from];
      const std::size_t i = seen[receive->from]++;
      if (i >= from.size() || messages_[from[i]].tag != receive->tag) in_order[receive->from] = 0;
    }
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> by_tag;
    for (std::size_t s = 0; s < ranks; ++s) {
      if (in_order[s]) continue;
      for (auto m = by_sender[s].rbegin(); m != by_sender[s].rend(); ++m) {
        by_tag[{static_cast<std::uint32_t>(s), messages_[*m].tag}].push_back(*m);
      }
    }
    std::uint32_t at = first_step_[p];
    for (const Instruction& instruction : programs.ranks[p]) {
      Step& step = steps_[at++];
      const auto* receive = std::get_if<Receive>(&instruction);
      if (receive == nullptr) continue;
      if (in_order[receive->from]) {
        step.message = by_sender[receive->from][taken[receive->from]++];
        continue;
      }
      auto& with_tag = by_tag[{receive->from, receive->tag}];
      if (with_tag.empty()) {
        throw Error(
            fmt::format("rank {} waits for message {} from rank {}, which never "
                        "sends it",
                        p, receive->tag, receive->from));
      }
      step.message = with_tag.back();
      with_tag.pop_back();
    }
    for (const std::uint32_t m : sent[p]) {
      by_sender[messages_[m].sender].clear();
      taken[messages_[m].sender] = 0;
    }
  }
}

void Simulation::add_routes() {
  const std::uint32_t devices = platform_.num_devices();
  constexpr std::uint32_t unknown = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::vector<std::uint32_t>> to(devices);
  for (std::uint32_t m = 0; m < messages_.size(); ++m) to[messages_[m].receiver].push_back(m);
  for (std::uint32_t d = 0; d < devices; ++d) {
    if (to[d].empty()) continue;
    const RouteTree tree = platform_.routes_to(d);
    std::vector<std::uint32_t> route_from(devices, unknown);
    for (const std::uint32_t m : to[d]) {
      std::uint32_t& route = route_from[messages_[m].sender];
      if (route == unknown) {
        route = static_cast<std::uint32_t>(routes_.size());
        routes_.push_back(add_route(platform_, messages_[m].sender, tree, hops_));
      }
      messages_[m].route = route;
    }
  }
}

Simulation::Route Simulation::add_route(const Platform& platform, std::uint32_t from,
                                        const RouteTree& tree, std::vector<std::uint32_t>& hops) {
  Route route;
  route.first_hop = static_cast<std::uint32_t>(hops.size());
  for (const std::uint32_t link : platform.route(from, tree)) {
    hops.push_back(link);
    route.latency_s += platform.links()[link].latency_s;
  }
  route.num_hops = static_cast<std::uint32_t>(hops.size()) - route.first_hop;
  return route;
}

RunResult Simulation::run(const RunOptions& options,
                          std::span<const double> compute_factors) const {
  return EventLoop(*this, options, compute_factors).run();
}

}  // namespace kvcast::simulate
