#include "search/partition_bound.h"

#include <algorithm>

#include "model/error.h"

namespace kvcast::search {
namespace {

/// The largest value in [low, high] that `holds`, which is true up to it; low - 1 if none.
template <typename Holds>
std::uint64_t last_that(std::uint64_t low, std::uint64_t high, const Holds& holds) {
  std::uint64_t below = low - 1;
  while (below < high) {
    const std::uint64_t middle = below + (high - below + 1) / 2;
    if (holds(middle)) {
      below = middle;
    } else {
      high = middle - 1;
    }
  }
  return below;
}

}  // namespace

PartitionBound::PartitionBound(const Runahead& runahead, std::uint64_t context,
                               std::size_t processes)
    : runahead_(runahead), context_(context), processes_(processes) {
  even_partition(context, processes);  // throws
  const simulate::LayerTimes& t = runahead.times();
  const auto exchanges = [&](std::size_t l) { return t.bytes_per_token(t.kinds()[l]) > 0; };
  while (first_ + 1 < t.num_layers() && !exchanges(first_)) ++first_;
  last_ = t.num_layers() - 1;
  while (last_ > first_ && !exchanges(last_)) --last_;
  const std::size_t kinds = *std::max_element(t.kinds().begin(), t.kinds().end()) + 1;
  before_.assign(kinds, 0);
  after_.assign(kinds, 0);
  for (std::size_t l = first_; l < last_; ++l) {
    after_[t.kinds()[l]] += 1;
    before_[t.kinds()[l + 1]] += 1;
    message_bytes_per_token_ += static_cast<double>(t.bytes_per_token(t.kinds()[l]));
    messages_ += exchanges(l) ? 1 : 0;
  }
}

PartitionBound::Row PartitionBound::row(std::size_t process, std::uint64_t tokens,
                                        std::uint64_t keys) {
  const simulate::LayerTimes& t = runahead_.times();
  t.evaluate(tokens, keys, process + 1 == processes_, runahead_.host_pace(process, processes_),
             times_);
  Row row;
  row.start_s = times_.embedding_s;
  for (std::size_t l = 0; l <= first_; ++l) {
    row.start_s += times_.kinds[t.kinds()[l]].before_exchange_s;
    if (l < first_) row.start_s += times_.kinds[t.kinds()[l]].after_exchange_s;
  }
  for (std::size_t k = 0; k < times_.kinds.size(); ++k) {
    row.layers_s += before_[k] * times_.kinds[k].before_exchange_s +
                    after_[k] * times_.kinds[k].after_exchange_s;
  }
  const ChainLink& link = runahead_.link();
  if (link.order == SendOrder::Block && process + 1 < processes_) {
    row.layers_s += messages_ * link.latency_s +
                    static_cast<double>(keys) * message_bytes_per_token_ / link.bytes_per_s;
  }
  row.end_s = times_.head_s + times_.kinds[t.kinds()[last_]].after_exchange_s;
  for (std::size_t l = last_ + 1; l < t.num_layers(); ++l) {
    const simulate::LayerTime& layer = times_.kinds[t.kinds()[l]];
    row.end_s += layer.before_exchange_s + layer.after_exchange_s;
  }
  return row;
}

double PartitionBound::message_s(std::size_t layer, std::uint64_t tokens) const {
  const simulate::LayerTimes& t = runahead_.times();
  const auto per_token = static_cast<double>(t.bytes_per_token(t.kinds()[layer]));
  if (per_token == 0) return 0;
  return runahead_.link().latency_s +
         static_cast<double>(tokens) * per_token / runahead_.link().bytes_per_s;
}

double PartitionBound::link_layers_s(std::uint64_t tokens) const {
  const ChainLink& link = runahead_.link();
  // Messages that share the link wait for their latencies at the same time.
  const double latency = link.order == SendOrder::Async ? 0 : messages_ * link.latency_s;
  return latency + static_cast<double>(tokens) * message_bytes_per_token_ / link.bytes_per_s;
}

bool PartitionBound::tighten(double ttft_s, BoundaryRanges& r) {
  const std::size_t last = processes_ - 1;
  const auto begin_highest = [&](std::size_t i) { return i == 0 ? 0 : r.highest[i - 1]; };
  bool moved = false;
  // What a path pays outside of its row: the first process's way to its first exchange, messages
  // down the chain, and the last process's way from its last exchange.
  const Row front = row(0, r.lowest[0], r.lowest[0]);
  const double end_s = row(last, context_ - begin_highest(last), context_).end_s;
  std::vector<double> outside(processes_, front.start_s + end_s);
  for (std::size_t i = 0; i < processes_; ++i) {
    for (std::size_t k = 0; k < last; ++k) {
      outside[i] += message_s(k < i ? first_ : last_, r.lowest[k]);
    }
  }
  for (std::size_t i = 0; i < processes_; ++i) {
    const double budget = ttft_s - outside[i];
    // Its end is highest when its begin is.
    const std::uint64_t begin = begin_highest(i);
    const std::uint64_t end = last_that(r.lowest[i], r.highest[i], [&](std::uint64_t candidate) {
      // Up to the highest begin it would be done in no time: that is no bound.
      if (candidate <= begin) return true;
      const bool sent = i == last || ttft_s - outside[i] >= link_layers_s(candidate);
      return sent && row(i, candidate - begin, candidate).layers_s <= budget;
    });
    if (end < r.lowest[i]) return r.feasible = false;
    moved |= end < r.highest[i];
    r.highest[i] = end;
  }
  for (std::size_t i = last; i > 0; --i) {
    const double budget = ttft_s - outside[i];
    const std::uint64_t end = r.lowest[i];
    const std::uint64_t most = end - r.lowest[i - 1];
    const std::uint64_t tokens = last_that(1, most, [&](std::uint64_t candidate) {
      return row(i, candidate, end).layers_s <= budget;
    });
    if (tokens == 0 || end - tokens > r.highest[i - 1]) return r.feasible = false;
    moved |= end - tokens > r.lowest[i - 1];
    r.lowest[i - 1] = end - tokens;
  }
  // The last process alone, its own start included: where the host sets its pace, nothing less.
  const std::uint64_t fewest = context_ - begin_highest(last);
  const Row alone = row(last, fewest, context_);
  if (alone.start_s + alone.layers_s + alone.end_s > ttft_s) return r.feasible = false;
  return moved;
}

BoundaryRanges PartitionBound::ranges(double ttft_s) {
  BoundaryRanges r;
  r.feasible = true;
  for (std::size_t i = 0; i < processes_; ++i) {
    const bool last = i + 1 == processes_;
    r.lowest.push_back(last ? context_ : i + 1);
    r.highest.push_back(context_ - (processes_ - 1 - i));
  }
  // Each pass sharpens the next one's budgets; the first few do nearly all of it.
  constexpr int most_passes = 12;
  for (int pass = 0; pass < most_passes && tighten(ttft_s, r); ++pass) {
  }
  return r;
}

double PartitionBound::lower_bound_s(double reached) {
  constexpr double precision = 1e-6;
  double infeasible = 0;
  double open = reached;
  if (!ranges(reached).feasible) {
    KVCAST_ASSERT(ranges(reached * (1 + bound_rounding)).feasible);
    return reached;
  }
  while (open - infeasible > precision * reached) {
    const double middle = (infeasible + open) / 2;
    (ranges(middle).feasible ? open : infeasible) = middle;
  }
  return infeasible;
}

}  // namespace kvcast::search
