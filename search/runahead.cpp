#include "search/runahead.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::search {
namespace {

void check_link(const ChainLink& link) {
  if (!(link.bytes_per_s > 0)) {
    throw Error("link bandwidth", fmt::format("{:g} bytes/s", link.bytes_per_s),
                "a number above 0");
  }
  for (const double latency : {link.latency_s, link.exchange.message_s, link.exchange.exchange_s}) {
    if (!(latency >= 0) || !std::isfinite(latency)) {
      throw Error("link latency", fmt::format("{:g} s", latency), "at least 0");
    }
  }
  if (!(link.exchange.lockstep > 0 && link.exchange.lockstep <= 1)) {
    throw Error("lockstep", fmt::format("{:g}", link.exchange.lockstep),
                "a share, above 0 and at most 1");
  }
}

}  // namespace

std::vector<std::uint64_t> boundaries_of(std::span<const std::uint64_t> partition) {
  std::vector<std::uint64_t> boundaries{0};
  for (const std::uint64_t tokens : partition) boundaries.push_back(boundaries.back() + tokens);
  return boundaries;
}

void check_partition(std::span<const std::uint64_t> partition, std::uint64_t prompt_len,
                     std::string_view where) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < partition.size(); ++i) {
    if (partition[i] == 0) {
      throw Error(where, fmt::format("a part {} without tokens", i), "at least 1 token in each");
    }
    sum = checked_add(sum, partition[i]);
  }
  if (sum != prompt_len || partition.empty()) {
    throw Error(where, fmt::format("parts of {} tokens in all", sum),
                fmt::format("the {} of the prompt", prompt_len));
  }
}

void share_link(const Chain& chain, std::uint64_t tokens, std::span<const double> ready,
                std::span<double> sent) {
  // A message ends when the link has moved as many bytes for each message as it had when this one
  // joined, and this one's own.
  using Flow = std::pair<double, std::size_t>;  // level of bytes at which it ends, layer
  std::priority_queue<Flow, std::vector<Flow>, std::greater<>> flowing;
  double now = 0;
  double level = 0;
  const auto advance = [&](double until) {
    while (!flowing.empty()) {
      const double share = chain.link.bytes_per_s / static_cast<double>(flowing.size());
      const double end = now + (flowing.top().first - level) / share;
      if (end > until) {
        level += (until - now) * share;
        break;
      }
      now = end;
      level = flowing.top().first;
      sent[flowing.top().second] = end;
      flowing.pop();
    }
    now = until;
  };
  for (std::size_t l = 0; l < chain.kinds.size(); ++l) {
    if (!chain.exchanges(l)) continue;
    advance(ready[l] + chain.link.latency_s);
    flowing.emplace(level + chain.message_bytes(l, tokens), l);
  }
  advance(std::numeric_limits<double>::infinity());
}

double play_layers(const Chain& chain, const simulate::RankTimes& times, std::uint64_t tokens,
                   bool last, std::span<const double> received, std::span<double> ready,
                   std::span<double> sent) {
  const ChainLink& link = chain.link;
  double now = times.embedding_s;
  double link_free = 0;
  for (std::size_t l = 0; l < chain.kinds.size(); ++l) {
    const simulate::LayerTime& time = times.kinds[chain.kinds[l]];
    now = chain.waits_first(l) ? std::max(now, received[l]) + time.before_exchange_s
                               : std::max(now + time.before_exchange_s, received[l]);
    ready[l] = now;
    sent[l] = 0;
    if (!last && chain.exchanges(l)) {
      const double moving_s = chain.message_bytes(l, tokens) / link.bytes_per_s;
      // Messages that share the link wait for their latencies at the same time.
      link_free = link.order == SendOrder::Async
                      ? std::max(link_free, now + link.latency_s) + moving_s
                      : std::max(link_free, now) + link.latency_s + moving_s;
      sent[l] = link_free;
      if (link.order == SendOrder::Block) now += link.latency_s + moving_s;
    }
    now += time.after_exchange_s;
  }
  return now + times.head_s;
}

double play_rank(const Chain& chain, const simulate::RankTimes& times, std::uint64_t tokens,
                 bool last, RunaheadScratch& s) {
  for (auto* of_layers : {&s.received, &s.ready, &s.sent}) of_layers->resize(chain.kinds.size());
  const double end = play_layers(chain, times, tokens, last, s.received, s.ready, s.sent);
  if (last) return end;
  if (chain.link.order == SendOrder::Async) share_link(chain, tokens, s.ready, s.sent);
  std::swap(s.sent, s.received);
  return end;
}

Runahead::Runahead(simulate::LayerTimes times, const ChainLink& link)
    : times_(std::move(times)),
      chain_{times_.kinds(), times_.bytes_per_token(), link, times_.seen()} {
  check_link(link);
}

void Runahead::evaluate(std::size_t rank, std::size_t ranks, std::uint64_t tokens,
                        std::uint64_t keys, simulate::RankTimes& times) const {
  times_.evaluate(tokens, keys, rank + 1 == ranks,
                  exchange_pace(simulate::Schedule::Kvr, link().exchange, rank, ranks), times);
}

double Runahead::ttft_s(std::span<const std::uint64_t> partition, RunaheadScratch& s) const {
  s.received.assign(times_.num_layers(), 0);
  std::uint64_t tokens = 0;
  double end = 0;
  for (std::size_t i = 0; i < partition.size(); ++i) {
    tokens += partition[i];
    evaluate(i, partition.size(), partition[i], tokens, s.times);
    end = play_rank(chain_, s.times, tokens, i + 1 == partition.size(), s);
  }
  return end;
}

double Runahead::ttft_s(std::span<const std::uint64_t> partition) const {
  RunaheadScratch scratch;
  return ttft_s(partition, scratch);
}

double tsp_ttft_s(const simulate::LayerTimes& times, const ChainLink& link,
                  std::span<const std::uint64_t> partition) {
  check_link(link);
  const std::size_t ranks = partition.size();
  if (link.order == SendOrder::Async && ranks > 1) {
    throw Error("closed form of TSP", "send order async", "fifo or block");
  }
  const simulate::PrefillWork work = simulate::prefill_work(
      times, simulate::Schedule::Tsp, {partition.begin(), partition.end()}, link.exchange);
  const std::vector<simulate::RankTimes>& rank = work.ranks;
  std::vector<double> now;
  for (const simulate::RankTimes& p : rank) now.push_back(p.embedding_s);
  std::vector<double> link_free(ranks, 0);
  std::vector<double> arrived(ranks);
  for (const std::size_t kind : work.layers) {
    const auto per_token = static_cast<double>(work.bytes_per_token[kind]);
    for (std::size_t i = 0; i < ranks; ++i) now[i] += rank[i].kinds[kind].before_exchange_s;
    for (std::size_t step = 0; per_token > 0 && step + 1 < ranks; ++step) {
      for (std::size_t i = 0; i < ranks; ++i) {
        const std::size_t chunk = (i + ranks - step) % ranks;
        link_free[i] = std::max(link_free[i], now[i]) + link.latency_s +
                       static_cast<double>(partition[chunk]) * per_token / link.bytes_per_s;
        arrived[(i + 1) % ranks] = link_free[i];
      }
      for (std::size_t i = 0; i < ranks; ++i) {
        now[i] = std::max(now[i], arrived[i]);
        if (link.order == SendOrder::Block) now[i] = std::max(now[i], link_free[i]);
      }
    }
    for (std::size_t i = 0; i < ranks; ++i) now[i] += rank[i].kinds[kind].after_exchange_s;
  }
  return now.back() + rank.back().head_s;
}

PrefillBounds prefill_bounds(const simulate::LayerTimes& times, simulate::Schedule schedule,
                             std::span<const std::uint64_t> partition,
                             const simulate::ExchangeCost& exchange) {
  const std::uint64_t prompt_len = boundaries_of(partition).back();
  const ChainLink free{.bytes_per_s = std::numeric_limits<double>::infinity(),
                       .exchange = exchange};
  PrefillBounds bounds;
  bounds.one_device_s = times.total_s(times.of_rank(prompt_len, prompt_len, true));
  const auto p = static_cast<double>(partition.size());
  bounds.star_s = bounds.one_device_s / 2 * (1 / p + 1 / (p * p));
  bounds.no_communication_s = schedule == simulate::Schedule::Kvr
                                  ? Runahead(times, free).ttft_s(partition)
                                  : tsp_ttft_s(times, free, partition);
  return bounds;
}

}  // namespace kvcast::search
