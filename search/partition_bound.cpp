#include "search/partition_bound.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "model/base/error.h"
#include "search/last_that.h"

namespace kvcast::search {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Cuts off what leaves no token for another part.
void leave_room(BoundaryRanges& r) {
  for (std::size_t i = 1; i < r.lowest.size(); ++i) {
    r.lowest[i] = std::max(r.lowest[i], r.lowest[i - 1] + 1);
  }
  for (std::size_t i = r.highest.size() - 1; i > 0; --i) {
    r.highest[i - 1] = std::min(r.highest[i - 1], r.highest[i] - 1);
  }
  for (std::size_t i = 0; i < r.lowest.size(); ++i) r.feasible &= r.lowest[i] <= r.highest[i];
}

Partition parts_of(const std::vector<std::uint64_t>& ends) {
  Partition parts{ends.front()};
  for (std::size_t i = 1; i < ends.size(); ++i) parts.push_back(ends[i] - ends[i - 1]);
  return parts;
}

std::uint64_t fewest_tokens(const BoundaryRanges& r, std::size_t rank, std::uint64_t end) {
  const std::uint64_t begin = rank == 0 ? 0 : r.highest[rank - 1];
  return end > begin ? end - begin : 1;
}

}  // namespace

PartitionBound::PartitionBound(const Runahead& runahead, std::uint64_t prompt_len,
                               std::size_t ranks)
    : runahead_(runahead), prompt_len_(prompt_len), ranks_(ranks), chain_(runahead.chain()) {
  even_partition(prompt_len, ranks);  // throws
  arrivals_.resize(ranks * chain_.kinds.size());
  deadlines_.resize(ranks * chain_.kinds.size());
  latest_ready_.resize(ranks * chain_.kinds.size());
  for (auto* of_layers : {&ready_, &sent_, &latest_, &latest_arrivals_}) {
    of_layers->resize(chain_.kinds.size());
  }
}

void PartitionBound::evaluate(std::size_t rank, std::uint64_t tokens, std::uint64_t keys) {
  runahead_.times().evaluate(tokens, keys, rank + 1 == ranks_,
                             runahead_.exchange_pace(rank, ranks_), times_);
}

void PartitionBound::set_deadlines(std::size_t rank, std::uint64_t keys, double ttft_s,
                                   std::span<double> deadlines) {
  const bool last = rank + 1 == ranks_;
  // Backwards through the layers. Both are the latest moments that still meet T: for the layer's
  // end, and for the link to have moved all messages up to this layer's.
  double layer_end = last ? ttft_s - times_.head_s : never;
  double link_end = never;
  for (std::size_t l = chain_.kinds.size(); l-- > 0;) {
    const simulate::LayerTime& time = times_.kinds[chain_.kinds[l]];
    deadlines[l] = layer_end - time.after_exchange_s;
    if (!last && chain_.exchanges(l)) {
      const double needed = row(deadlines_, rank + 1)[l];
      const double moving_s = chain_.message_bytes(l, keys) / chain_.link.bytes_per_s;
      deadlines[l] = latest_send(deadlines[l], needed, moving_s, link_end);
    }
    layer_end = deadlines[l] - time.before_exchange_s;
  }
}

double PartitionBound::latest_send(double compute, double needed, double moving_s,
                                   double& link_end) const {
  const double latency_s = chain_.link.latency_s;
  switch (chain_.link.order) {
    case SendOrder::Block:  // the rank computes when the message has arrived
      return std::min(compute, needed) - latency_s - moving_s;
    case SendOrder::Fifo:  // the link takes one message after another, each with its latency
      link_end = std::min(link_end, needed) - moving_s - latency_s;
      return std::min(compute, link_end);
    case SendOrder::Async:  // the same, but messages wait for their latencies side by side
      link_end = std::min(link_end, needed) - moving_s;
      return std::min(compute, link_end - latency_s);
  }
  KVCAST_ASSERT(false);
  return 0;
}

double PartitionBound::play(std::size_t rank, std::uint64_t keys,
                            std::span<const double> received) {
  return play_layers(chain_, times_, keys, rank + 1 == ranks_, received, ready_, sent_);
}

bool PartitionBound::in_time(std::size_t rank, std::uint64_t keys, double ttft_s) {
  const double end = play(rank, keys, row(arrivals_, rank));
  if (rank + 1 == ranks_) return end <= ttft_s;
  const std::span<const double> needed = row(deadlines_, rank + 1);
  const auto sent_in_time = [&] {
    return std::equal(sent_.begin(), sent_.end(), needed.begin(), std::less_equal<>());
  };
  if (!sent_in_time() || chain_.link.order != SendOrder::Async) return sent_in_time();
  set_deadlines(rank, keys, ttft_s, latest_);
  const std::span<const double> latest = row(latest_ready_, rank);
  for (std::size_t l = 0; l < chain_.kinds.size(); ++l)
    latest_[l] = std::min(latest_[l], latest[l]);
  share_link(End::Earliest, keys);
  return sent_in_time();
}

void PartitionBound::play_latest(const BoundaryRanges& r) {
  std::fill(latest_arrivals_.begin(), latest_arrivals_.end(), 0.0);
  for (std::size_t i = 0; i + 1 < ranks_; ++i) {
    evaluate(i, r.highest[i] - (i == 0 ? 0 : r.lowest[i - 1]), r.highest[i]);
    play(i, r.highest[i], latest_arrivals_);
    std::copy(ready_.begin(), ready_.end(), row(latest_ready_, i).begin());
    latest_ = ready_;
    evaluate(i, fewest_tokens(r, i, r.lowest[i]), r.lowest[i]);
    play(i, r.lowest[i], row(arrivals_, i));
    share_link(End::Latest, r.highest[i]);
    latest_arrivals_ = sent_;
  }
}

void PartitionBound::share_link(End bound, std::uint64_t keys) {
  const ChainLink& link = chain_.link;
  sending_.clear();
  earliest_.clear();
  latest_starts_.clear();
  bytes_.clear();
  for (std::size_t l = 0; l < chain_.kinds.size(); ++l) {
    if (!chain_.exchanges(l)) continue;
    sending_.push_back(l);
    earliest_.push_back(ready_[l] + link.latency_s);
    latest_starts_.push_back(std::max(ready_[l], latest_[l]) + link.latency_s);
    bytes_.push_back(chain_.message_bytes(l, keys));
  }
  ends_.resize(sending_.size());
  const auto ends_of =
      bound == End::Earliest ? &SharedLinkBounds::earliest_ends : &SharedLinkBounds::latest_ends;
  (shared_link_.*ends_of)(earliest_, latest_starts_, bytes_, link.bytes_per_s, ends_);
  for (std::size_t i = 0; i < sending_.size(); ++i) {
    double& sent = sent_[sending_[i]];
    // What a layer receives is of use when all before it has come too.
    sent = bound == End::Earliest ? std::max(sent, ends_[i]) : ends_[i];
  }
}

bool PartitionBound::narrow_forward(double ttft_s, BoundaryRanges& r) {
  bool moved = false;
  for (std::size_t i = 0; i < ranks_; ++i) {
    // Its end is highest when its begin is.
    const std::uint64_t end = last_that(r.lowest[i], r.highest[i], [&](std::uint64_t candidate) {
      evaluate(i, fewest_tokens(r, i, candidate), candidate);
      return in_time(i, candidate, ttft_s);
    });
    if (end < r.lowest[i]) return r.feasible = false;
    moved |= end < r.highest[i];
    r.highest[i] = end;
    if (i + 1 == ranks_) break;
    evaluate(i, fewest_tokens(r, i, r.lowest[i]), r.lowest[i]);
    if (!in_time(i, r.lowest[i], ttft_s)) return r.feasible = false;
    std::copy(sent_.begin(), sent_.end(), row(arrivals_, i + 1).begin());
  }
  return moved;
}

bool PartitionBound::narrow_backward(double ttft_s, BoundaryRanges& r) {
  bool moved = false;
  for (std::size_t i = ranks_; i-- > 0;) {
    const std::uint64_t end = r.lowest[i];
    if (i > 0) {
      const std::uint64_t most = end - r.lowest[i - 1];
      const std::uint64_t tokens = last_that(1, most, [&](std::uint64_t candidate) {
        evaluate(i, candidate, end);
        return in_time(i, end, ttft_s);
      });
      if (tokens == 0 || end - tokens > r.highest[i - 1]) return r.feasible = false;
      moved |= end - tokens > r.lowest[i - 1];
      r.lowest[i - 1] = end - tokens;
    }
    evaluate(i, fewest_tokens(r, i, end), end);
    set_deadlines(i, end, ttft_s, row(deadlines_, i));
  }
  return moved;
}

void PartitionBound::narrow(double ttft_s, BoundaryRanges& r) {
  leave_room(r);
  std::fill(latest_ready_.begin(), latest_ready_.end(), never);
  std::fill(arrivals_.begin(), arrivals_.end(), 0.0);
  std::fill(deadlines_.begin(), deadlines_.end(), never);
  // Each pass sharpens the next one's windows; the first few do nearly all of it.
  constexpr int most_passes = 12;
  bool moved = true;
  for (int pass = 0; pass < most_passes && moved && r.feasible; ++pass) {
    moved = narrow_backward(ttft_s, r);
    if (r.feasible) moved |= narrow_forward(ttft_s, r);
    if (r.feasible && chain_.link.order == SendOrder::Async) play_latest(r);
    moved |= pass == 0;
  }
}

BoundaryRanges PartitionBound::all() const {
  BoundaryRanges r;
  r.feasible = true;
  for (std::size_t i = 0; i < ranks_; ++i) {
    const bool last = i + 1 == ranks_;
    r.lowest.push_back(last ? prompt_len_ : i + 1);
    r.highest.push_back(prompt_len_ - (ranks_ - 1 - i));
  }
  return r;
}

BoundaryRanges PartitionBound::ranges(double ttft_s) {
  BoundaryRanges r = all();
  narrow(ttft_s, r);
  return r;
}

bool PartitionBound::refuted(double ttft_s, BoundaryRanges r, int& halvings) {
  narrow(ttft_s, r);
  if (!r.feasible) return true;
  if (r.lowest == r.highest) return runahead_.ttft_s(parts_of(r.lowest)) > ttft_s;
  if (halvings == 0) return false;
  const auto width = [&](std::size_t i) {
    return static_cast<double>(r.highest[i] - r.lowest[i]) / static_cast<double>(r.highest[i]);
  };
  std::size_t widest = 0;
  for (std::size_t i = 1; i < ranks_; ++i) {
    if (width(i) > width(widest)) widest = i;
  }
  --halvings;
  const std::uint64_t middle = r.lowest[widest] + (r.highest[widest] - r.lowest[widest]) / 2;
  BoundaryRanges upper = r;
  upper.lowest[widest] = middle + 1;
  r.highest[widest] = middle;
  return refuted(ttft_s, std::move(r), halvings) && refuted(ttft_s, std::move(upper), halvings);
}

double PartitionBound::lower_bound_s(double reached) {
  constexpr double precision = 1e-6;
  const BoundaryRanges within = ranges(reached);
  if (!within.feasible) {
    KVCAST_ASSERT(ranges(reached * (1 + bound_rounding)).feasible);
    return reached;
  }
  BoundaryRanges left = within;
  double refuted_s = 0;
  double open_s = reached;
  while (open_s - refuted_s > precision * reached) {
    const double middle = (refuted_s + open_s) / 2;
    // Whatever reaches less than `open_s` lies in its ranges.
    BoundaryRanges r = left;
    narrow(middle, r);
    (r.feasible ? open_s : refuted_s) = middle;
    if (r.feasible) left = std::move(r);
  }
  // A gap that is left comes from ranges that stay wide.
  constexpr double small_gap = 1e-3;
  // Half a second of work for 8 ranks, and less for fewer; more of them gain little from it.
  int all_halvings = 2048 / static_cast<int>(ranks_);
  const int most_halvings = all_halvings / 4;
  open_s = reached;
  while (open_s - refuted_s > small_gap * reached && all_halvings > 0) {
    const double middle = (refuted_s + open_s) / 2;
    const int allowed = std::min(most_halvings, all_halvings);
    int halvings = allowed;
    (refuted(middle, within, halvings) ? refuted_s : open_s) = middle;
    all_halvings -= allowed - halvings;
  }
  return refuted_s;
}

}  // namespace kvcast::search
