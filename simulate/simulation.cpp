#include "simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"

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
              fmt::format("at most {}: fewer devices, layers or tokens", max_instructions));
}

std::string_view name(SendOrder order) { return word_for(order, send_orders); }

SendOrder parse_send_order(std::string_view word) {
  return parse_word("send order", word, send_orders);
}

Simulation::Simulation(Platform platform, Programs programs)
    : platform_(std::move(platform)), programs_(std::move(programs)) {
  if (programs_.ranks.size() != platform_.num_devices()) {
    throw Error("programs", fmt::format("{} ranks", programs_.ranks.size()),
                fmt::format("one for each of the {} devices", platform_.num_devices()));
  }
  check_instructions(programs_.num_instructions());
  add_messages();
  match_receives();
  add_routes();
}

void Simulation::add_messages() {
  const std::size_t ranks = programs_.ranks.size();
  std::size_t sends = 0;
  for (const Program& program : programs_.ranks) {
    sends += static_cast<std::size_t>(std::count_if(
        program.begin(), program.end(),
        [](const Instruction& instruction) { return std::holds_alternative<Send>(instruction); }));
  }
  messages_.reserve(sends);
  queues_.reserve(sends);
  for (std::uint32_t p = 0; p < ranks; ++p) {
    first_message_.push_back(static_cast<std::uint32_t>(messages_.size()));
    std::vector<std::uint32_t> sent(ranks, 0);  // to each receiver
    for (std::size_t i = 0; i < programs_.ranks[p].size(); ++i) {
      const Instruction& instruction = programs_.ranks[p][i];
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        if (!(compute->seconds >= 0) || !std::isfinite(compute->seconds)) {
          fail_step(p, i, fmt::format("{} s", compute->seconds), "a duration of zero or more");
        }
        if (compute->label >= labels().size()) {
          fail_step(p, i, fmt::format("label {}", compute->label),
                    fmt::format("one of the {} labels", labels().size()));
        }
      } else if (const auto* send = std::get_if<Send>(&instruction)) {
        check_peer(p, i, send->to, ranks);
        messages_.push_back({send->bytes, 0, p, send->to, sent[send->to]++});
        queues_.push_back(send->queues);
      } else {
        check_peer(p, i, std::get<Receive>(instruction).from, ranks);
      }
    }
  }
  first_message_.push_back(static_cast<std::uint32_t>(messages_.size()));
}

void Simulation::match_receives() {
  const std::size_t ranks = programs_.ranks.size();
  std::vector<std::vector<std::uint32_t>> sent_to(ranks);  // messages, by sender and in its order
  for (std::uint32_t m = 0; m < messages_.size(); ++m) sent_to[messages_[m].receiver].push_back(m);
  received_.resize(ranks);
  for (std::size_t p = 0; p < ranks; ++p) {
    const std::vector<std::uint32_t>& sent = sent_to[p];
    received_[p].reserve(sent.size());
    std::vector<std::size_t> next(ranks, sent.size());  // in `sent`, of each sender
    for (std::size_t i = sent.size(); i-- > 0;) next[messages_[sent[i]].sender] = i;
    std::vector<std::uint32_t> taken(ranks, 0);
    for (const Instruction& instruction : programs_.ranks[p]) {
      const auto* receive = std::get_if<Receive>(&instruction);
      if (receive == nullptr) continue;
      const std::uint32_t number = taken[receive->from]++;
      const std::size_t i = next[receive->from] + number;
      if (i >= sent.size() || messages_[sent[i]].sender != receive->from) {
        throw Error(fmt::format("rank {} waits for message {} from rank {}, which never sends it",
                                p, number, receive->from));
      }
      received_[p].push_back(sent[i]);
    }
  }
}

std::vector<std::uint32_t> Simulation::busy_ranks() const {
  std::vector<std::uint32_t> busy;
  for (std::uint32_t p = 0; p < programs_.ranks.size(); ++p) {
    if (!programs_.ranks[p].empty()) busy.push_back(p);
  }
  return busy;
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

}  // namespace kvcast::simulate
